// run.json: what a run is, and where its state lies (docs/run_format.md).
//
// It is written in version 3. The older formats are read into the same RunInfo, so that the next
// write turns them into version 3.
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
#include "run/identity/run_changes.h"
#include "run/identity/skipped_steps.h"
#include "run/state_files.h"

namespace penstock::train {

inline constexpr const char* kInfoName = "run.json";
/// The limit of the size of run.json, which holds a config.json.
inline constexpr Bytes kMaxOwnText = 64_MiB;

/// The front end that trains a run. No other one resumes it.
enum class RunKind {
  kTrain,      ///< penstock train
  kOptimizer,  ///< the Python package; parameters are the caller's
  kModule      ///< the Python package; parameters are penstock's
};

/// The format in which a run.json was found.
enum class RunFormat {
  kCurrent,       ///< version 3
  kOlder,         ///< versions 1 and 2, of penstock train
  kOlderPackage,  ///< version 1 of the package, whose programs take another lock
};

/// What a run of kTrain trains.
struct RunTraining {
  std::string model_json;  ///< the model's config.json, verbatim
  std::string data_path;   ///< absolute
  std::string data_order;  ///< "shuffle", "sequential"
  uint64_t seed = 0;
  uint64_t sequence_length = 0;
  std::string device;  ///< "cpu", "cuda"
};

/// The contents of run.json.
struct RunInfo {
  RunKind kind = RunKind::kTrain;
  std::string program;  ///< the version of the one that began the run
  /// By which the run knows its snapshots: it stays when the state is moved and has another. Empty
  /// if format is kOlderPackage: the first program that writes it draws one.
  std::string run_uuid;
  /// RUN when it was last opened for writing: absolute, without links. Empty in an older run of
  /// kTrain, which does not say it.
  std::string place;
  bool temporary = false;           ///< RUN is removed with its state if there is no commit
  std::optional<StateFiles> state;  ///< holds the newest commit; none before the first one
  /// States without a commit of this run, which are being made or moved, or could not be removed:
  /// their existing files have to be removed.
  std::vector<StateFiles> leftovers;
  /// The snapshot that the state was moved back to, until metrics.jsonl holds its rows: its name,
  /// or, in a run of the package, the absolute path of a folder elsewhere.
  std::optional<std::string> rows_from;
  /// Before the first commit: the files of rows and curves that go with the run (run/made_files.h).
  std::vector<std::string> made_files;
  /// Where a snapshot is being made that is a run of its own: an absolute path, without links.
  std::optional<std::string> copying;
  /// Of an automatic snapshot: which one it is of its run's, from 1.
  std::optional<uint64_t> automatic;
  std::vector<RunChange> changes;          ///< in the order in which they were made
  std::vector<StepRange> skip_steps;       ///< in the order of their steps
  RunTraining training;                    ///< empty if kind is another than kTrain
  RunFormat format = RunFormat::kCurrent;  ///< as it was read; no part of the text
};

/// Writes run.json in version 3, durably, unless it says the same already. Precondition: run_uuid
/// and place are given. Errors: kInvalidArgument for a text that is not UTF-8; of looking at
/// folders; of writing.
Status WriteRunInfo(const Folder& run, const RunInfo& info);

/// Returns what the text of the run.json in `run` says. Errors: kCorruption, also for a version
/// that this program does not know, which is named.
Result<RunInfo> ParseRunInfo(const std::string& text, const Folder& run);

/// "penstock train", "the Python package (optimizer)", "the Python package (module)".
const char* ToString(RunKind kind);
/// Refuses a run of the package. Errors: kInvalidArgument, with `instead`: what to do.
Status CheckIsOfTrain(const RunInfo& info, const std::string& run, const std::string& instead);
/// Returns the state that holds the newest commit. Errors: kNotFound, before the first commit.
Result<StateFiles> CommittedFiles(const RunInfo& info, const std::string& run);
/// Returns that state; before the first commit the one that is being made, or none.
StateFiles NewestFiles(const RunInfo& info);

}  // namespace penstock::train
