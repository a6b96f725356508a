// DeepSpeed's estimates of memory for ZeRO-2 and ZeRO-3: model states alone, as its functions
// estimate_zero2_model_states_mem_needs and estimate_zero3_model_states_mem_needs give them.
//
// They leave out activations, buffers for transfers, the drive and the program itself, so a
// training that they let through may not fit. They are here to be compared with.
//
// Pure functions. Threads: any.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/units.h"

namespace penstock::train {

/// What the estimates depend on.
struct EstimateInput {
  uint64_t parameters = 0;
  uint64_t largest_module = 0;  ///< LargestModule
  uint64_t gpus_per_node = 1;   ///< at least 1
  uint64_t nodes = 1;           ///< at least 1
  /// What DeepSpeed multiplies CPU memory with, for buffers.
  double buffer_factor = 1.5;
};

struct EstimateRow {
  int stage = 0;  ///< 2 or 3
  bool offload_param = false;
  bool offload_optimizer = false;
  /// Stage 3: whether the model is built in shards (deepspeed.zero.Init). None for stage 2.
  std::optional<bool> zero_init = {};
  Bytes cpu;  ///< of a node
  Bytes gpu;  ///< of one GPU
  /// Stage 2 without offloading: what DeepSpeed says for `gpu` since its pull request 5099 (2024);
  /// equal on one GPU. None elsewhere.
  std::optional<Bytes> gpu_since_2024 = {};
};

/// Returns DeepSpeed's rows in its order: six of stage 3, then two of stage 2. They are equal to
/// the byte for up to 5e14 parameters: a product is rounded where Python rounds it.
std::vector<EstimateRow> DeepSpeedEstimate(const EstimateInput& input);

/// Returns the rows under a header, in GB of 2^30 bytes with two digits, as DeepSpeed prints them.
/// Ends with a line break.
std::string EstimateText(const EstimateInput& input);

/// Returns {"parameters", "largest_module", "gpus_per_node", "nodes", "rows"}; a row has "stage",
/// "offload_param" and "offload_optimizer" ("cpu" or "none"), "zero_init" (null for stage 2),
/// "cpu_bytes", "gpu_bytes", and "gpu_bytes_since_2024" if there is one.
nlohmann::json EstimateJson(const EstimateInput& input);

}  // namespace penstock::train
