// How near to their bound plans of drive-bound steps come, with the defaults, in virtual time: a
// GPT-2 of 65 billion parameters, everything on nvme, on a GPU with 400 TFLOP/s.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "tests/search_share.h"
#include "train/plan/run_plan.h"
#include "train/plan/shaped_model.h"

namespace penstock::train {
namespace {

constexpr uint64_t kSequence = 2048;
constexpr uint64_t kMicroBatch = 8;
constexpr Bytes kDeviceMemory = 76_GiB;

struct Cell {
  Bytes host;
  int drives = 1;
  double gbps = 7;  ///< read, and as much written, of each drive
  uint64_t tokens = 0;
};

std::string Name(const Cell& cell) {
  return fmt::format("{} of host memory, {} drives of {} GB/s, {} tokens", ToString(cell.host),
                     cell.drives, cell.gbps, cell.tokens);
}

class LargeModel {
 public:
  explicit LargeModel(const Cell& cell)
      : cell_(cell),
        model_(MakeShapedModel(ParseModelShape("gpt2:h=8192,l=80,v=50257,s=2048").value()).value()),
        spec_(model_->Spec()),
        config_(config::ParseConfig({{"test", Json(cell)}}, 1).value()) {
    config_.compute_threads = 1;
    config_.optimizer_threads = 16;
  }

  RunPlan Plan() const {
    const PlannedTraining training{.spec = spec_,
                                   .model = *model_,
                                   .shape = {.micro_batch = config_.micro_batch_size,
                                             .micro_batches = config_.gradient_accumulation_steps,
                                             .sequence = kSequence,
                                             .checkpoint_home = config_.activation_home},
                                   .config = config_,
                                   .kind = device::Kind::kCuda};
    const double rate = cell_.gbps * cell_.drives * 1e9;
    return PlanRun(training, {.device = kDeviceMemory, .host = cell_.host, .drive = {}},
                   {.cores = 26,
                    .layer_flops = 400e12,
                    .head_flops = 400e12,
                    .update_element = 1e-9,
                    .norm_element = 1e-10,
                    .copy_byte = 1 / 50e9,
                    .drive =
                        sim::DriveSpeed{.read_bytes_a_second = rate, .write_bytes_a_second = rate}})
        .value();
  }

  /// What no step beats (docs/performance.md), if all host memory above the minimum held tiles:
  /// the resources, and between norm and next use the updates, of which nothing is read ahead.
  double Bound(const RunPlan& plan) const {
    const StepEstimate& step = *plan.step;
    const auto parameters = static_cast<double>(plan.cost.parameters);
    const double held = static_cast<double>((cell_.host - plan.needs.host_minimum).value);
    const double on_drive = parameters - held / 12;
    // Weights that backward fetches once more.
    const double again = static_cast<double>(step.to_device_bytes) - 2 * parameters;
    const double rate = cell_.gbps * cell_.drives * 1e9;
    const double again_s = again * on_drive / parameters / rate;
    const double updates_s = std::max(12 * on_drive / rate, *step.floors.update);
    const double forward = *step.floors.compute / 4;
    const double backward = *step.floors.compute - forward;
    return std::max({*step.floors.copies, updates_s + again_s,
                     std::max(forward, updates_s) + std::max(backward, again_s)});
  }

 private:
  static std::string Json(const Cell& cell) {
    std::string paths;
    for (int i = 0; i < cell.drives; ++i) {
      paths += fmt::format("{}\"/tmp/{}\"", i == 0 ? "" : ",", i);
    }
    return fmt::format(
        R"({{"train_micro_batch_size_per_gpu": {}, "gradient_accumulation_steps": {},
             "bf16": {{"enabled": true}},
             "optimizer": {{"type": "AdamW", "params": {{"lr": 1e-4}}}},
             "zero_optimization": {{"stage": 3,
               "offload_param": {{"device": "nvme", "nvme_path": [{}]}},
               "offload_optimizer": {{"device": "nvme", "nvme_path": [{}]}}}},
             "penstock": {{"activation_home": "host"}}}})",
        kMicroBatch, cell.tokens / kMicroBatch / kSequence, paths, paths);
  }

  const Cell cell_;
  const std::shared_ptr<const ModelDescription> model_;
  const zero::ModelSpec spec_;
  config::Config config_;
};

std::vector<Cell> Cells(std::initializer_list<Bytes> hosts,
                        std::initializer_list<uint64_t> tokens) {
  std::vector<Cell> cells;
  for (const Bytes host : hosts) {
    for (const int drives : {1, 4}) {
      for (const double gbps : {7.0, 14.0}) {
        for (const uint64_t of_step : tokens) cells.push_back({host, drives, gbps, of_step});
      }
    }
  }
  return cells;
}

void ExpectNearItsBound(const Cell& cell) {
  SCOPED_TRACE(Name(cell));
  const LargeModel model(cell);
  const RunPlan plan = model.Plan();
  ASSERT_TRUE(plan.fits());
  // Commits have a price of their own, which is known beside the step's.
  const double step = *plan.step->step_s - plan.commit.wait_s.value_or(0);
  const double ratio = step / model.Bound(plan);
  fmt::print("{}: step {:.1f} s, bound {:.1f} s, ratio {:.3f}\n", Name(cell), step,
             model.Bound(plan), ratio);
  EXPECT_GE(ratio, 0.999) << "nothing beats a bound";
  EXPECT_LE(ratio, 1.05);
}

TEST(DriveBoundPlanTest, WithTheDefaultsStepsTakeAtMostATwentiethMoreThanTheirBound) {
  std::vector<Cell> cells = Cells({180_GiB, 400_GiB}, {16384});
  for (const Cell& cell : Cells({400_GiB}, {65536})) cells.push_back(cell);
  cells.resize(std::max<size_t>(1, SearchShare(cells.size())));
  for (const Cell& cell : cells) ExpectNearItsBound(cell);
}

TEST(DriveBoundPlanTest, HostMemoryThatGradientsAndCheckpointsDoNotFitIsRefused) {
  for (const Cell& cell : {Cell{64_GiB, 1, 7, 16384}, Cell{180_GiB, 1, 7, 65536}}) {
    const RunPlan plan = LargeModel(cell).Plan();
    ASSERT_EQ(plan.shortages.size(), 1U) << Name(cell);
    EXPECT_EQ(plan.shortages.front().tier, "host") << Name(cell);
  }
}

}  // namespace
}  // namespace penstock::train
