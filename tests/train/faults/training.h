// A training of a tiny model in processes of its own, with a fault of its drives: what a case of
// the search runs. A process each, so that a crash or a hang is an outcome like others.
//
// Threads: the calling program has one, so that it may fork.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "base/units.h"

namespace penstock::train {

/// Where states live, on how many paths and ranks.
struct Setup {
  std::string name;
  std::string device;  ///< of the configuration: "nvme" or "cpu"
  uint32_t paths = 1;
  uint32_t ranks = 1;
};

/// A unit of a path of a rank's state that a write goes to, and which of the writes to it.
struct Site {
  uint32_t rank = 0;
  uint32_t path = 0;
  FileOffset unit;
  uint64_t number = 0;

  auto operator<=>(const Site&) const = default;
};

/// A write of a path, as it was submitted.
struct SeenWrite {
  uint32_t rank = 0;
  uint32_t path = 0;
  FileOffset offset;
  Bytes size;
};

struct TrainingOptions {
  Setup setup;
  std::string folder;  ///< holds everything of the case
  bool resume = false;
  uint64_t steps = 0;        ///< number of the last
  std::optional<Site> site;  ///< of the fault
  aio::Fault::Kind kind = aio::Fault::Kind::kLost;
};

/// How a training ended.
struct Ended {
  bool ok = false;
  bool hung = false;
  int signal = 0;       ///< that ended a process; 0: none
  std::string error;    ///< where it is not ok
  uint64_t steps = 0;   ///< done in this run
  uint64_t states = 0;  ///< hash of all masters and moments of the last commit
  std::vector<SeenWrite> writes;
  std::string log;  ///< what the processes said on stderr
};

/// Makes the folder of a setup: model, data, drives.
void MakeFolder(const std::string& folder);
Ended TrainOnce(const TrainingOptions& options);
/// The rows of metrics.jsonl in RUN; nothing if there is no RUN.
std::optional<uint64_t> RowsOf(const std::string& folder);

}  // namespace penstock::train
