// The engine with every optimizer: the same bits in every placement, and what the rules say.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "tests/search_share.h"
#include "tests/zero/engine_support.h"
#include "zero/engine/engine.h"

namespace penstock::zero {
namespace {

constexpr double kLr = 1e-2;  // ToyRun's

Rule Lion() { return {.hyper = kernels::LionHyperparameters{.beta2 = 0.9, .weight_decay = 0.1}}; }

Rule Adagrad() {
  return {.hyper = kernels::AdagradHyperparameters{.lr_decay = 0.1, .weight_decay = 0.1},
          .initial_accumulator_value = 0.25};
}

Rule Lamb() { return {.hyper = kernels::LambHyperparameters{.weight_decay = 0.1}}; }

Rule WithBFloat16Moments(Rule rule) {
  rule.moments = DType::kBFloat16;
  return rule;
}

class OptimizerTest : public EngineTest {
 protected:
  /// `placement` says the name, the dtype and the rule.
  void ExpectSameBitsInEveryPlacement(const Placement& run) {
    const Placement placements[] = {
        {.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost},
        {.name = "optimizer nvme", .parameters = Tier::kDevice},
        {.name = "all nvme, smallest"},
        {.name = "all nvme, roomy, two threads", .optimizer_threads = 2, .smallest_host = false},
        {.name = "all nvme, tiny tiles", .tile_elements = 4096},
        {.name = "all nvme, serial", .overlap = false},
        {.name = "two drives", .drives = {1, 1}},
    };
    Placement on_device = run;
    on_device.parameters = on_device.optimizer = Tier::kDevice;
    const Outcome reference = TrainAndRead(on_device);
    for (Placement placement : placements) {
      if (tried_++ % kTrainingStride != 0) continue;
      placement.dtype = run.dtype;
      placement.rule = run.rule;
      placement.with_gradients = run.with_gradients;
      ExpectSameBits(TrainAndRead(placement), reference,
                     fmt::format("{}, {}", run.name, placement.name));
    }
  }

 private:
  uint64_t tried_ = 0;
};

TEST_F(OptimizerTest, EveryRuleOfOnePassGivesTheSameBitsInEveryPlacement) {
  const std::pair<const char*, Rule> optimizers[] = {
      {"Lion", Lion()},
      {"Adagrad", Adagrad()},
      {"AdamW, bf16 moments", WithBFloat16Moments(Rule())},
      {"Lion, bf16 moments", WithBFloat16Moments(Lion())},
      {"Adagrad, bf16 moments", WithBFloat16Moments(Adagrad())},
  };
  for (const auto& [name, rule] : optimizers) {
    for (const DType dtype : {DType::kBFloat16, DType::kFloat32}) {
      ExpectSameBitsInEveryPlacement({.name = name,
                                      .dtype = dtype,
                                      .rule = rule,
                                      .with_gradients = dtype == DType::kBFloat16});
    }
  }
}

TEST_F(OptimizerTest, LambGivesTheSameBitsInEveryPlacementAlthoughItNeedsNormsOfTensors) {
  for (const DType dtype : {DType::kBFloat16, DType::kFloat32, DType::kFloat16}) {
    ExpectSameBitsInEveryPlacement({.name = "Lamb", .dtype = dtype, .rule = Lamb()});
  }
  ExpectSameBitsInEveryPlacement({.name = "Lamb, bf16 moments, without clipping",
                                  .rule = WithBFloat16Moments(Lamb()),
                                  .with_gradients = true});
}

TEST_F(OptimizerTest, LambGivesTheSameBitsWhereHostMemoryHasSomeTiles) {
  const Outcome reference = TrainAndRead(
      {.name = "host", .parameters = Tier::kHost, .optimizer = Tier::kHost, .rule = Lamb()});
  const Placement placements[] = {
      {.name = "split", .tier_split = true, .more_host = 700_KiB},
      {.name = "two more blocks", .more_host = 300_KiB},
      {.name = "weights on the drive", .optimizer = Tier::kHost},
      {.name = "one slot", .durable = false},
  };
  for (Placement placement : placements) {
    placement.rule = Lamb();
    ExpectSameBits(TrainAndRead(placement), reference, placement.name);
  }
}

/// The values that every tensor begins with, in the order of CommittedValues.
std::vector<float> InitialWeights(const offload::ShardLayout& layout) {
  std::vector<float> all;
  for (size_t module = 0; module < layout.model.modules.size(); ++module) {
    for (size_t tensor = 0; tensor < layout.model.modules[module].tensors.size(); ++tensor) {
      std::vector<float> values(layout.model.modules[module].tensors[tensor].elements);
      EXPECT_TRUE(ToyWeights(ModuleId{static_cast<uint32_t>(module)}, tensor, 0, values).ok());
      all.insert(all.end(), values.begin(), values.end());
    }
  }
  return all;
}

class FirstStepTest : public EngineTest {
 protected:
  struct States {
    std::vector<float> before;
    std::vector<float> after;
    std::vector<float> exp_avg;
    std::vector<float> exp_avg_sq;
  };

  /// One step in fp32, without clipping.
  States Take(const Rule& rule) {
    States states;
    const Placement placement{
        .name = "first step", .dtype = DType::kFloat32, .rule = rule, .with_gradients = true};
    {
      ToyRun run(Options(placement), 64_MiB);
      EXPECT_TRUE(run.created().ok());
      EXPECT_TRUE(run.session().Initialize(ToyWeights).ok());
      EXPECT_TRUE(run.Step(1, 1.0F).ok());
      Commit(run, 1, 1);
      state_paths_ = run.session().state_paths();
      states.before = InitialWeights(run.session().layout());
    }
    states.after = CommittedValues(state_paths_, StateKind::kMaster);
    states.exp_avg = CommittedValues(state_paths_, StateKind::kExpAvg);
    states.exp_avg_sq = CommittedValues(state_paths_, StateKind::kExpAvgSq);
    return states;
  }
};

TEST_F(FirstStepTest, LionGoesByTheLearningRateAgainstTheGradient) {
  Rule rule = Lion();
  rule.hyper = kernels::LionHyperparameters{.beta2 = 0.9};
  const States states = Take(rule);
  EXPECT_TRUE(states.exp_avg_sq.empty());
  ASSERT_EQ(states.exp_avg.size(), states.after.size());
  size_t moved = 0;
  for (size_t i = 0; i < states.after.size(); ++i) {
    const float sign = states.exp_avg[i] == 0 ? 0.0F : std::copysign(1.0F, states.exp_avg[i]);
    EXPECT_NEAR(states.after[i], states.before[i] - kLr * sign, 1e-6) << i;
    if (sign != 0) ++moved;
  }
  EXPECT_GT(moved, states.after.size() / 2);
}

TEST_F(FirstStepTest, AdagradDividesTheGradientByTheRootOfItsSum) {
  Rule rule = Adagrad();
  rule.hyper = kernels::AdagradHyperparameters{};
  const States states = Take(rule);
  EXPECT_TRUE(states.exp_avg.empty());
  ASSERT_EQ(states.exp_avg_sq.size(), states.after.size());
  size_t moved = 0;
  for (size_t i = 0; i < states.after.size(); ++i) {
    ASSERT_GE(states.exp_avg_sq[i], 0.25F);
    const double gradient = std::sqrt(states.exp_avg_sq[i] - 0.25);
    const double step = kLr * gradient / std::sqrt(states.exp_avg_sq[i]);
    const double moved_by = states.after[i] - states.before[i];
    EXPECT_NEAR(std::abs(moved_by), step, 1e-5) << i;
    // The toy's gradient is its weight and at most 0.04.
    if (step <= 1e-3 || std::abs(states.before[i]) < 0.2F) continue;
    EXPECT_EQ(moved_by > 0, states.before[i] < 0) << i;
    ++moved;
  }
  EXPECT_GT(moved, states.after.size() / 3);
}

/// A tensor of the toy in double, as DeepSpeed's FusedLamb trains it.
struct ExactTensor {
  const offload::TensorLayout* place = nullptr;
  double weight_decay = 0;
  std::vector<double> w, m, v;

  void Step(const kernels::LambHyperparameters& hyper, uint64_t t) {
    std::vector<double> u(w.size());
    double weights = 0;
    double updates = 0;
    for (size_t i = 0; i < w.size(); ++i) {
      const double g = w[i] * 0.3 + 0.01 * static_cast<double>((place->offset + i) % 5);
      m[i] = hyper.beta1 * m[i] + (1 - hyper.beta1) * g;
      v[i] = hyper.beta2 * v[i] + (1 - hyper.beta2) * g * g;
      u[i] = m[i] / (std::sqrt(v[i]) + hyper.eps) + weight_decay * w[i];
      weights += w[i] * w[i];
      updates += u[i] * u[i];
    }
    const double ratio = std::clamp(std::sqrt(weights / updates), hyper.min_coeff, hyper.max_coeff);
    const auto steps = static_cast<double>(t);
    const double step = kLr * std::sqrt(1 - std::pow(hyper.beta2, steps)) /
                        (1 - std::pow(hyper.beta1, steps)) * ratio;
    for (size_t i = 0; i < w.size(); ++i) w[i] -= step * u[i];
  }
};

std::vector<ExactTensor> ExactTensors(const offload::ShardLayout& layout, double weight_decay) {
  std::vector<ExactTensor> tensors;
  const std::vector<float> initial = InitialWeights(layout);
  auto next = initial.begin();
  for (const offload::ModuleLayout& module : layout.model.modules) {
    for (const offload::TensorLayout& place : module.tensors) {
      const auto end = next + static_cast<std::ptrdiff_t>(place.elements);
      tensors.push_back({.place = &place,
                         .weight_decay = place.group == offload::kDecay ? weight_decay : 0,
                         .w = {next, end},
                         .m = std::vector<double>(place.elements),
                         .v = std::vector<double>(place.elements)});
      next = end;
    }
  }
  return tensors;
}

// Tolerance: a step rounds the weights (at most 0.5) to 2^-25 and its direction to a few 2^-24 of
// 1e-2, and errors of gradients stay as small because eps keeps the direction smooth: 20 steps are
// within 20 * 2^-24 = 1.2e-6.
TEST_F(OptimizerTest, TwentyStepsOfLambAgreeWithDoublePrecision) {
  const kernels::LambHyperparameters hyper{.eps = 1e-3, .weight_decay = 0.1};
  std::vector<ExactTensor> exact;
  {
    ToyRun run(Options({.name = "twenty",
                        .dtype = DType::kFloat32,
                        .parameters = Tier::kHost,
                        .optimizer = Tier::kHost,
                        .rule = {.hyper = hyper},
                        .with_gradients = true}),
               64_MiB);
    ASSERT_TRUE(run.created().ok());
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    exact = ExactTensors(run.session().layout(), 0.1);
    for (uint64_t t = 1; t <= 20; ++t) {
      ASSERT_TRUE(run.Step(t, 1.0F).ok());
      for (ExactTensor& tensor : exact) tensor.Step(hyper, t);
    }
    Commit(run, 20, 20);
    state_paths_ = run.session().state_paths();
  }
  const std::vector<float> trained = CommittedValues(state_paths_, StateKind::kMaster);
  size_t at = 0;
  for (const ExactTensor& tensor : exact) {
    for (const double w : tensor.w) EXPECT_NEAR(trained[at++], w, 1.2e-6);
  }
  EXPECT_EQ(at, trained.size());
}

TEST_F(EngineTest, TheRandomBitsOfBFloat16MomentsDependOnTheSeedAlone) {
  Placement placement{.name = "bf16 moments", .rule = WithBFloat16Moments(Rule())};
  const Outcome first = TrainAndRead(placement);
  ExpectSameBits(TrainAndRead(placement), first, "the same seed");
  placement.seed += 1;
  const Outcome other = TrainAndRead(placement);
  size_t different = 0;
  for (size_t i = 0; i < first.exp_avg_sq.size(); ++i) {
    // In each run 5 updates round by less than 2^-7 of the value; and gradients follow the weights.
    EXPECT_NEAR(other.exp_avg_sq[i], first.exp_avg_sq[i], 0.12F * first.exp_avg_sq[i]) << i;
    if (other.exp_avg_sq[i] != first.exp_avg_sq[i]) ++different;
  }
  EXPECT_GT(different, first.exp_avg_sq.size() / 10);
}

TEST_F(EngineTest, FewerStatesAreFewerBytesOnTheDrive) {
  const auto written = [this](const Rule& rule) {
    ToyRun run(Options({.name = "nvme", .rule = rule}), 64_MiB);
    EXPECT_TRUE(run.created().ok());
    EXPECT_TRUE(run.session().Initialize(ToyWeights).ok());
    constexpr uint64_t kMeasured = 4;
    for (uint64_t t = 1; t <= kMeasured; ++t) EXPECT_TRUE(run.Step(t, 1.0F).ok());
    EXPECT_TRUE(run.session().Drain().ok());
    return static_cast<double>(run.session().counters().nvme_write_bytes) /
           static_cast<double>(run.session().layout().model.elements() * kMeasured);
  };
  // hi and lo are 4 bytes of an element, a moment 4 or 2.
  EXPECT_EQ(written(Rule()), 12);
  EXPECT_EQ(written(Lion()), 8);
  EXPECT_EQ(written(Adagrad()), 8);
  EXPECT_EQ(written(WithBFloat16Moments(Rule())), 8);
  EXPECT_EQ(written(WithBFloat16Moments(Lion())), 6);
  EXPECT_EQ(written(WithBFloat16Moments(Adagrad())), 6);
  EXPECT_EQ(written(Lamb()), 12);
  EXPECT_EQ(written(WithBFloat16Moments(Lamb())), 8);
}

}  // namespace
}  // namespace penstock::zero
