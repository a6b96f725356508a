// RUN/summary.json: the settings and results of a run. docs/metrics.md lists the fields.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/units.h"
#include "config/config.h"
#include "offload/layout.h"
#include "train/loop/metrics.h"

namespace penstock::train {

/// The results of one run of the training loop, from its first reading to its last.
struct LoopSummary {
  uint64_t steps = 0;    ///< steps of this process
  uint64_t skipped = 0;  ///< skipped ones among them
  uint64_t tokens = 0;
  uint64_t last_step = 0;  ///< number of the last step done, in any run
  uint64_t committed_step = 0;
  bool interrupted = false;
  std::optional<double> first_loss;
  std::optional<double> last_loss;
  Reading begin;
  Reading end;

  double seconds() const { return ToSeconds(end.time - begin.time); }
};

/// What a run needs; bytes of a step are those of one rank.
struct PlanFigures {
  uint64_t device_peak_bytes = 0;
  uint64_t host_peak_bytes = 0;
  double nvme_read_bytes_per_step = 0;
  double nvme_write_bytes_per_step = 0;
  std::optional<double> step_s = {};
};
struct PlannedAndMeasured {
  PlanFigures planned;
  PlanFigures measured;
};

struct RunSummary {
  LoopSummary loop;
  ModelCost cost;
  Bytes device_memory;  ///< the limits that applied
  Bytes host_memory;
  std::string aio_engine;
  std::string device;       ///< "cpu", "cuda"
  std::string device_name;  ///< for messages
  uint64_t seed = 0;
  config::Config config;
  offload::ShardLayout layout;
  std::optional<PlannedAndMeasured> plan = {};
  bool shown = true;  ///< false: another rank shows it

  /// Adam in mixed precision: 16 bytes a parameter.
  Bytes model_state() const { return Bytes{16 * layout.model.parameters}; }
};

/// Returns the file's text, indented.
std::string ToJson(const RunSummary& summary);

/// Returns the table for stdout at the end of a run.
std::string ToTable(const RunSummary& summary);

}  // namespace penstock::train
