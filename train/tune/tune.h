// `penstock tune`: measures a drive with the I/O engines of the training and says how to set them.
//
// Threads: the main thread.
#pragma once

#include <optional>
#include <string>

#include "base/result.h"
#include "base/units.h"
#include "train/tune/table.h"

namespace penstock::train {

struct TuneCommand {
  std::string nvme_path;      ///< a folder on the drive
  std::optional<Bytes> size;  ///< size of the file to measure with
  std::string out;            ///< where the config fragment goes; empty: stdout
  std::string plot;           ///< where the SVG goes; empty: none
  bool quick = false;
};

/// Measures, with progress on stderr. Refuses to start if output files exist already, or if the
/// path has no space or no O_DIRECT. The measuring file has no name, so nothing is left of it.
/// Errors: kInvalidArgument, kNotFound, kPermission, kOutOfSpace, kUnavailable, kIo; kCancelled
/// after Ctrl-C.
Result<TuneReport> RunTune(const TuneCommand& command);

/// Returns the output for stdout: the tables, and the config fragment if it has no file to go to.
std::string OutputText(const TuneCommand& command, const TuneReport& report);

/// Writes the files that the command names.
Status WriteTuneFiles(const TuneCommand& command, const TuneReport& report);

}  // namespace penstock::train
