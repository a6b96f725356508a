// The commands of penstock that need no model that computes: tools on runs, drives and plans.
//
// Threads: the main thread.
#pragma once

#include <string>
#include <variant>

#include "base/dtype.h"
#include "train/doctor/doctor.h"
#include "train/plan/plan_command.h"
#include "train/tune/tune.h"

namespace penstock::train {

struct ExportCommand {
  std::string run;
  std::string to;
  DType dtype = DType::kFloat32;
};

struct InspectCommand {
  std::string run;
};

struct NumericsCommand {
  std::string run;
  std::string plot;  ///< SVG to write; empty: none
};

struct CompareCommand {
  std::string a;  ///< folder of a run, folder with safetensors, or safetensors file
  std::string b;
};

struct CleanCommand {
  std::string run;
  bool yes = false;  ///< false: only say what would be removed
};

struct SnapshotCommand {
  std::string run;
  std::string name;
};

struct SnapshotsCommand {
  std::string run;
};

/// A text to print on stdout: help, version.
struct PrintText {
  std::string text;
};

using ToolCommand = std::variant<ExportCommand, InspectCommand, NumericsCommand, CompareCommand,
                                 CleanCommand, SnapshotCommand, SnapshotsCommand, TuneCommand,
                                 DoctorCommand, PlanCommand, PrintText>;

}  // namespace penstock::train
