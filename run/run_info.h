// run.json: what a run is, and where its state lies (docs/run_format.md).
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/folder.h"
#include "base/result.h"
#include "base/units.h"
#include "run/run_changes.h"
#include "run/skipped_steps.h"
#include "run/state_files.h"

namespace penstock::train {

inline constexpr const char* kInfoName = "run.json";
/// The limit of the size of run.json, which holds a config.json.
inline constexpr Bytes kLargestOwnText = 64_MiB;

/// The front end that trains a run. No other one resumes it.
enum class RunKind {
  kTrain,      ///< penstock train
  kOptimizer,  ///< the Python package; parameters are the caller's
  kModule      ///< the Python package; parameters are penstock's
};

/// The contents of run.json.
struct RunInfo {
  RunKind kind = RunKind::kTrain;
  std::string version;  ///< of the program that made it
  /// The UUID of the run's first state, by which the run knows its snapshots: it stays when the
  /// state is moved and has another.
  std::string run_uuid;
  StateFiles state;
  /// States that are being moved, and that have no commit of this run: whatever exists of them has
  /// to be removed.
  std::vector<StateFiles> leftovers;
  /// The snapshot that the state was moved back to, until metrics.jsonl holds its rows.
  std::optional<std::string> rows_from;
  /// Of a run of the package: where its state files may lie.
  std::vector<std::string> folders;
  // What follows is empty in a run of the package.
  std::string model_json;  ///< the model's config.json, verbatim
  std::string data_path;   ///< absolute
  std::string data_order;  ///< "shuffle", "sequential"
  std::string device;      ///< "cpu", "cuda"
  uint64_t seed = 0;
  uint64_t sequence_length = 0;
  std::vector<RunChange> changes;  ///< in the order in which they were made
  std::vector<StepRange> skips;    ///< in the order of their steps
  /// Of an automatic snapshot: which one it is of its run's, from 1.
  std::optional<uint64_t> automatic;
};

/// Writes run.json, durably. Precondition: a run of kTrain.
Status WriteRunInfo(const Folder& run, const RunInfo& info);

/// Returns what the text of the run.json in `run` says. Errors: kCorruption; kNotFound for a run of
/// the package that has no commit yet.
Result<RunInfo> ParseRunInfo(const std::string& text, const Folder& run);

/// "penstock train", "the Python package (optimizer)", "the Python package (module)".
const char* ToString(RunKind kind);
/// Refuses a run of the package. Errors: kInvalidArgument, with `instead`: what to do.
Status CheckIsOfTrain(const RunInfo& info, const std::string& run, const std::string& instead);

}  // namespace penstock::train
