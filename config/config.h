// The configuration, in DeepSpeed's JSON format, read strictly.
//
// Keys, types and defaults are DeepSpeed's; penstock's own keys live under "penstock". An unknown
// key anywhere, a duplicate or a wrong type is an error that names its path
// ("zero_optimization.stag") and the nearest known key. Keys whose purpose is served in another way
// are type-checked and listed as superseded; keys that change numbers or behaviour and are not
// implemented are errors unless their value turns them off. config/auto.h determines "auto" values.
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
#include "config/auto.h"
#include "config/superseded.h"
#include "kernels/dtype.h"
#include "kernels/state/optimizer.h"

namespace penstock::config {

struct OptimizerConfig {
  std::string type = "AdamW";  ///< as written; "Adam" means AdamW unless adam_w_mode is false
  double lr = 1e-3;
  kernels::OptimizerHyperparameters hyper;  ///< values of AdamW and Adam, Lion, Adagrad or Lamb
  double initial_accumulator_value = 0;     ///< Adagrad: the initial exp_avg_sq
  kernels::DType moments = kernels::DType::kFloat32;  ///< bf16.bf16_optimizer_states: kBFloat16
};

enum class SchedulerType {
  kNone,
  kWarmupLr,
  kWarmupDecayLr,
  kWarmupCosineLr,
  kOneCycle,
  kLrRangeTest,
};
enum class WarmupType { kLog, kLinear };

/// Rate and momentum go from one bound to the other and back, once; then they decay.
struct OneCycle {
  double min_lr = 0;
  double max_lr = 0;
  double decay_lr_rate = 0;
  int64_t first_step_size = 2000;           ///< at least 1
  std::optional<int64_t> second_step_size;  ///< unset: as the first half
  int64_t first_stair_count = 0;
  std::optional<int64_t> second_stair_count;  ///< unset: as the first half
  int64_t decay_step_size = 0;                ///< 0: nothing decays
  bool momentum = true;                       ///< the betas follow the cycle
  double min_mom = 0.8;
  double max_mom = 0.9;
  double decay_mom_rate = 0;
};

/// The rate grows without end.
struct LrRangeTest {
  double min_lr = 1e-3;
  int64_t step_size = 2000;  ///< at least 1
  double step_rate = 1;
  bool staircase = false;
};

struct SchedulerConfig {
  SchedulerType type = SchedulerType::kNone;
  double warmup_min_lr = 0;
  std::optional<double> warmup_max_lr;  ///< unset: the optimizer's lr
  int64_t warmup_num_steps = 1000;      ///< below 2 means 2
  WarmupType warmup_type = WarmupType::kLog;
  int64_t total_num_steps = 0;
  /// What SetLastStep has to give: total_num_steps, which says "auto", and warmup_num_steps, as
  /// --warmup-ratio says.
  bool total_is_last_step = false;
  std::optional<double> warmup_ratio;
  bool ratio_for_auto = false;  ///< warmup_num_steps is "auto"; else it is missing
  double warmup_min_ratio = 0;
  double cos_min_ratio = 1e-4;
  OneCycle one_cycle;
  LrRangeTest range_test;
};

/// How many folders nvme_path may name.
inline constexpr uint32_t kMaxNvmePaths = 64;

enum class MicroBatchOrder { kVertical, kHorizontal };

/// How the gradients of a step's micro-batches are added up over ranks.
enum class GradientOrder {
  kGlobal,  ///< each by itself, in the order of the global batch: alike on any number of ranks
  kRank,    ///< each rank's first, and then these in the order of the ranks: sent once a step
};

/// Who computes attention in 16 bits on a CUDA device.
enum class AttentionChoice {
  kAuto,   ///< kOwn, until it is compared with cuDNN's on a GPU
  kOwn,    ///< kernels of penstock
  kCudnn,  ///< cuDNN; an error if it is missing
};

/// The loss scale of fp16 (zero/session/loss_scale.h).
struct LossScaling {
  double loss_scale = 0;  ///< 0: dynamic, by what follows
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

/// penstock.drive: how fast the drive of nvme_path is, as penstock tune has measured it. Plans
/// count with it, and nothing else.
struct DriveSpeed {
  double read_gbps = 0;  ///< 10^9 bytes a second
  double write_gbps = 0;
  bool shared = false;  ///< reads and writes share read_gbps
};

/// penstock.verify_commits: whether a commit counts only when its tiles were read back. With kAuto
/// zero/plan/commit_verification.h decides.
enum class VerifyCommits : uint8_t { kOff, kOn, kAuto };

/// penstock.rampup_batch_size: how the global batch grows to train_batch_size, in rows. By
/// Megatron's rule (sizing/batch_rampup.h).
struct RampupConfig {
  uint64_t start = 0;      ///< the first batch
  uint64_t increment = 0;  ///< divides train_batch_size minus `start`
  uint64_t samples = 0;    ///< rows after which the batch is train_batch_size
};

/// csv_monitor: where the curves of the run go (run/rows/csv_monitor.h).
struct CsvMonitor {
  std::string output_path;
  std::string job_name = "DeepSpeedJobName";
};

struct Config {
  // Batch triangle: train_batch_size = micro_batch_size * gradient_accumulation_steps * world size.
  uint64_t train_batch_size = 0;
  uint64_t micro_batch_size = 0;
  uint64_t gradient_accumulation_steps = 1;
  std::optional<RampupConfig> rampup;  ///< each batch has whole micro-batches of every rank

  /// Dtype of weights and gradients: bf16.enabled: kBFloat16; fp16.enabled: kFloat16.
  kernels::DType dtype = kernels::DType::kFloat32;
  std::optional<LossScaling> loss_scaling;  ///< set exactly with fp16
  /// A gradient that is not finite skips the step: as bf16 says, and always with fp16.
  bool check_grad_overflow = false;
  /// communication_data_type: gradients are rounded to it (nearest even) before they are sent to
  /// the ranks that add them up. With one rank those of micro-batches are rounded before they are
  /// added, unless gradient_order is kRank, where one rank sends nothing.
  kernels::DType communication = kernels::DType::kFloat32;
  GradientOrder gradient_order = GradientOrder::kGlobal;
  AttentionChoice attention = AttentionChoice::kAuto;
  double gradient_clipping = 1.0;  ///< 0: off

  OptimizerConfig optimizer;
  SchedulerConfig scheduler;

  int zero_stage = 0;
  Tier parameter_home = Tier::kDevice;  ///< offload_param.device: none, cpu, nvme
  Tier optimizer_home = Tier::kDevice;  ///< offload_optimizer.device
  std::vector<std::string> nvme_paths;  ///< at least one if a home is kNvme, else none
  uint64_t tile_elements = 1048576;     ///< min(penstock.tile_elements, sub_group_size)

  std::optional<Bytes> device_memory;
  std::optional<Bytes> host_memory;
  bool tier_split = true;  ///< keep as many nvme tiles in host memory as fit
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
  VerifyCommits verify_commits = VerifyCommits::kAuto;
  bool wall_clock_breakdown = false;
  aio::EngineOptions aio;
  std::optional<DriveSpeed> drive;
  /// Operations a second of the device's kernels, in 10^12, for plans.
  std::optional<double> device_tflops;
  int64_t heartbeat_seconds = 30;      ///< silence after which a rank counts as dead
  int64_t comm_timeout_seconds = 600;  ///< max time for a rank to join an operation between ranks

  int64_t steps_per_print = 0;            ///< 0: the program's choice
  std::optional<CsvMonitor> csv_monitor;  ///< set if it is enabled

  std::vector<SupersededKey> superseded;  ///< keys that were checked and have no effect
  std::vector<AutomaticKey> automatic;    ///< "auto" keys, and flags for others
  std::vector<std::string> notices;       ///< other lines for the user
};

/// One text of the configuration and where it came from (a path, for messages).
struct ConfigSource {
  std::string name;
  std::string text;
};

/// Reads the sources, later ones overriding key by key (objects merge, everything else replaces),
/// then checks the whole. `world_size` enters the batch triangle, `automatic` gives values to keys
/// that say "auto". Errors: kInvalidArgument, one line with source, line or key path, why, and what
/// to do.
Result<Config> ParseConfig(const std::vector<ConfigSource>& sources, uint64_t world_size,
                           const AutoSources& automatic = {});

/// "everything on nvme", "weights on the device, optimizer states on the host".
std::string PlacementText(const Config& config);
/// Whether weights or optimizer states live on nvme.
bool UsesNvme(const Config& config);

/// Whether the schedule depends on the last step: then SetLastStep has to be called before the
/// learning rate is asked for.
bool NeedsLastStep(const Config& config);
/// Gives the schedule the number of the last step, where it depends on it, and lists that.
/// `source`: where the number comes from. Errors: kInvalidArgument if it is 0.
Status SetLastStep(uint64_t last_step, const std::string& source, Config& config);

/// Returns the notices about the configuration that a program should print at its start, a line
/// each: moved keys, superseded keys, the value of each "auto" key, the precision if nothing
/// determines it.
std::vector<std::string> NoticesOf(const Config& config);

}  // namespace penstock::config
