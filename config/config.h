// The configuration, in DeepSpeed's JSON format, read strictly.
//
// Keys, types and defaults are DeepSpeed's; penstock's own keys live under "penstock". An unknown
// key anywhere, a duplicate or a wrong type is an error that names its path
// ("zero_optimization.stag") and the nearest known key. Keys that only tune DeepSpeed's buffers are
// type-checked and listed as superseded; keys that change numbers or behaviour and are not
// implemented are errors unless their value turns them off. "auto" takes the default and is listed.
// docs/config.md has the table.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "aio/aio.h"
#include "base/ledger.h"
#include "base/result.h"
#include "base/units.h"
#include "kernels/dtype.h"
#include "kernels/state/optimizer.h"

namespace penstock::config {

struct OptimizerConfig {
  std::string type = "AdamW";  ///< as written; "Adam" means AdamW unless adam_w_mode is false
  double lr = 1e-3;
  kernels::OptimizerHyperparameters hyper;            ///< of AdamW and Adam, Lion, Adagrad or Lamb
  double initial_accumulator_value = 0;               ///< Adagrad: the initial exp_avg_sq
  kernels::DType moments = kernels::DType::kFloat32;  ///< bf16.bf16_optimizer_states: kBFloat16
};

enum class SchedulerType { kNone, kWarmupLr, kWarmupDecayLr, kWarmupCosineLr };
enum class WarmupType { kLog, kLinear };

struct SchedulerConfig {
  SchedulerType type = SchedulerType::kNone;
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr;  ///< unset: the optimizer's lr
  int64_t warmup_num_steps = 1000;      ///< below 2 means 2
  WarmupType warmup_type = WarmupType::kLog;
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;
};

/// How many folders nvme_path may name.
inline constexpr uint32_t kMostNvmePaths = 64;

enum class MicroBatchOrder { kVertical, kHorizontal };

/// How the gradients of a step's micro-batches are added up over ranks.
enum class GradientOrder {
  kGlobal,  ///< each by itself, in the order of the global batch: alike on any number of ranks
  kRank,    ///< each rank's first, and then these in the order of the ranks: sent once a step
};

/// The loss scale of fp16 (zero/loss_scale.h).
struct LossScaling {
  double loss_scale = 0;  ///< 0: dynamic, by what follows
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

/// penstock.rampup_batch_size: how the global batch grows to train_batch_size, in rows. By
/// Megatron's rule (train/loop/batch_rampup.h).
struct RampupConfig {
  uint64_t start = 0;      ///< the first batch
  uint64_t increment = 0;  ///< divides what is missing from `start` to train_batch_size
  uint64_t samples = 0;    ///< rows after which the batch is train_batch_size
};

struct Config {
  // Batch triangle: train_batch_size = micro_batch_size * gradient_accumulation_steps * world size.
  uint64_t train_batch_size = 0;
  uint64_t micro_batch_size = 0;
  uint64_t gradient_accumulation_steps = 1;
  std::optional<RampupConfig> rampup;  ///< each batch has whole micro-batches of every rank

  /// Of weights and gradients: bf16.enabled: kBFloat16; fp16.enabled: kFloat16.
  kernels::DType dtype = kernels::DType::kFloat32;
  std::optional<LossScaling> loss_scaling;  ///< with fp16 alone, and always there
  /// A gradient that is not finite skips the step: as bf16 says, and always with fp16.
  bool check_grad_overflow = false;
  /// communication_data_type: gradients are rounded to it (nearest even) before they are sent to
  /// the ranks that add them up. With one rank those of micro-batches are rounded before they are
  /// added, unless gradient_order is kRank, where one rank sends nothing.
  kernels::DType communication = kernels::DType::kFloat32;
  GradientOrder gradient_order = GradientOrder::kGlobal;
  double gradient_clipping = 1.0;  ///< 0: off

  OptimizerConfig optimizer;
  SchedulerConfig scheduler;

  int zero_stage = 0;
  Tier parameter_home = Tier::kDevice;  ///< offload_param.device: none, cpu, nvme
  Tier optimizer_home = Tier::kDevice;  ///< offload_optimizer.device
  std::vector<std::string> nvme_paths;  ///< one or more if a home is kNvme, else none
  uint64_t tile_elements = 1048576;     ///< min(penstock.tile_elements, sub_group_size)

  std::optional<Bytes> device_memory;
  std::optional<Bytes> host_memory;
  bool tier_split = true;  ///< as many tiles whose home is nvme as fit live in host memory
  bool overlap = true;
  MicroBatchOrder schedule = MicroBatchOrder::kVertical;
  Tier activation_home = Tier::kDevice;
  int optimizer_threads = 0;  ///< 0: chosen by the program
  int compute_threads = 0;    ///< 0: chosen by the program
  int64_t commit_every_steps = 0;
  double commit_every_seconds = 300;
  int64_t snapshot_every_steps = 0;
  int64_t keep_snapshots = 2;  ///< automatic ones
  bool durable = true;
  bool verify_checksums = true;
  aio::EngineOptions aio;
  int64_t heartbeat_seconds = 30;      ///< a rank that is silent for so long is taken for dead
  int64_t comm_timeout_seconds = 600;  ///< so is one that stays away from an operation of all

  int64_t steps_per_print = 0;  ///< 0: the program's choice

  std::vector<std::string> superseded;  ///< paths of keys that were checked and have no effect
  std::vector<std::string> automatic;   ///< paths of keys that said "auto"
};

/// One text of the configuration and where it came from (a path, for messages).
struct ConfigSource {
  std::string name;
  std::string text;
};

/// Reads the sources, later ones overriding key by key (objects merge, everything else replaces),
/// then checks the whole. `world_size` enters the batch triangle. Errors: kInvalidArgument, one
/// line with source, line or key path, why, and what to do.
Result<Config> ParseConfig(const std::vector<ConfigSource>& sources, uint64_t world_size);

}  // namespace penstock::config
