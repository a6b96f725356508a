// The command line of penstock: train, launch, export, inspect, numerics, replay, compare, clean,
// snapshot, snapshots, tune, doctor.
//
// Threads: the main thread.
#pragma once

#include <string>
#include <variant>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "train/doctor/doctor.h"
#include "train/launch/launch.h"
#include "train/loop/plan_command.h"
#include "train/loop/replay.h"
#include "train/loop/trainer.h"
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

using Command =
    std::variant<TrainOptions, ExportCommand, InspectCommand, NumericsCommand, ReplayCommand,
                 CompareCommand, CleanCommand, SnapshotCommand, SnapshotsCommand, TuneCommand,
                 LaunchCommand, DoctorCommand, PlanCommand, PrintText>;

/// Reads the arguments (without the program's name). Errors: kInvalidArgument for arguments that
/// are unknown, missing, malformed or not implemented.
Result<Command> ParseCommandLine(const std::vector<std::string>& arguments);

}  // namespace penstock::train
