// The figures by tensor: what they are, and that neither tiles, homes nor ranks change them.
#include "zero/states/tensor_figures.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "tests/zero/engine_support.h"
#include "zero/exchange/zero_counts.h"
#include "zero/plan/partitioner.h"

namespace penstock::zero {
namespace {

class TensorFiguresTest : public EngineTest {
 protected:
  /// The figures of each of some steps, the last with the update of the one before.
  std::vector<StepFigures> Train(const Placement& placement) {
    const EngineOptions options = Options(placement);
    ToyRun run(options, 64_MiB);
    EXPECT_TRUE(run.created().ok()) << run.created().error().message;
    EXPECT_TRUE(run.session().Initialize(ToyWeights).ok());
    std::vector<StepFigures> figures;
    for (uint64_t t = 1; t <= 3; ++t) {
      const auto done = run.Step(t, 1.0F);
      EXPECT_TRUE(done.ok()) << placement.name << ": " << done.error().message;
      figures.push_back(run.session().figures());
      double squares = 0;
      for (const kernels::GradientFigures& of : figures.back().gradients) {
        squares += of.sum_of_squares;
      }
      EXPECT_NEAR(std::sqrt(squares) / done->loss_scale / done->grad_norm, 1, 1e-12)
          << placement.name;
    }
    return figures;
  }
  /// Tiles decide in which order sums are added up.
  static void ExpectNear(double found, double expected, const std::string& name) {
    EXPECT_NEAR(found, expected, 1e-6 * std::abs(expected)) << name;
  }
  static void ExpectSame(const std::vector<StepFigures>& found,
                         const std::vector<StepFigures>& expected, const std::string& name) {
    for (size_t step = 0; step < expected.size(); ++step) {
      ASSERT_EQ(found[step].gradients.size(), expected[step].gradients.size()) << name;
      for (size_t i = 0; i < expected[step].gradients.size(); ++i) {
        ExpectNear(found[step].gradients[i].sum_of_squares,
                   expected[step].gradients[i].sum_of_squares, name);
        EXPECT_EQ(found[step].gradients[i].largest, expected[step].gradients[i].largest) << name;
      }
      ASSERT_EQ(found[step].updates.size(), expected[step].updates.size()) << name;
      for (size_t i = 0; i < expected[step].updates.size(); ++i) {
        EXPECT_EQ(found[step].updates[i].largest, expected[step].updates[i].largest) << name;
        ExpectNear(found[step].updates[i].sum_of_squares, expected[step].updates[i].sum_of_squares,
                   name);
        ExpectNear(found[step].updates[i].update_sum_of_squares,
                   expected[step].updates[i].update_sum_of_squares, name);
      }
    }
  }
};

TEST_F(TensorFiguresTest, AreThoseOfTheTensorsWeights) {
  const std::vector<StepFigures> steps = Train({.name = "host",
                                                .dtype = DType::kFloat32,
                                                .parameters = Tier::kHost,
                                                .optimizer = Tier::kHost});
  EXPECT_TRUE(steps[0].updates.empty()) << "nothing was updated before";
  const ModelSpec model = ToySpec(kLayers, kLayerElements);
  size_t index = 0;
  for (size_t m = 0; m < model.modules.size(); ++m) {
    for (size_t t = 0; t < model.modules[m].tensors.size(); ++t, ++index) {
      uint64_t elements = 1;
      for (const uint64_t size : model.modules[m].tensors[t].shape) elements *= size;
      std::vector<float> weights(elements);
      ASSERT_TRUE(ToyWeights(ModuleId{static_cast<uint32_t>(m)}, t, 0, weights).ok());
      double squares = 0;
      for (const float weight : weights) squares += double{weight} * weight;
      // The updates of Adam's first step are of the learning rate's size, 0.01.
      const kernels::WeightFigures& updated = steps[1].updates[index];
      const auto count = static_cast<double>(elements);
      EXPECT_NEAR(std::sqrt(updated.sum_of_squares / count), std::sqrt(squares / count), 0.02);
      EXPECT_GT(std::sqrt(updated.update_sum_of_squares / count), 0.002) << index;
      EXPECT_LT(std::sqrt(updated.update_sum_of_squares / count), 0.012) << index;
      EXPECT_LE(updated.largest, 0.52F);
      EXPECT_GT(updated.largest, 0.1F);
    }
  }
  EXPECT_EQ(index, steps[0].gradients.size());
}

TEST_F(TensorFiguresTest, DoNotDependOnTilesHomesOrThreads) {
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    const Tier host = Tier::kHost;
    const std::vector<StepFigures> expected =
        Train({.name = "host", .dtype = dtype, .parameters = host, .optimizer = host});
    for (Placement placement :
         {Placement{.name = "nvme"}, Placement{.name = "tiny tiles", .tile_elements = 4096},
          Placement{.name = "large tiles", .tile_elements = 1 << 20},
          Placement{.name = "device", .parameters = Tier::kDevice, .optimizer = Tier::kDevice},
          Placement{.name = "device, tiny tiles",
          .parameters = Tier::kDevice,
          .optimizer = Tier::kDevice,
          .tile_elements = 4096},
          Placement{.name = "two threads", .optimizer_threads = 2, .smallest_host = false}}) {
      placement.dtype = dtype;
      ExpectSame(Train(placement), expected, placement.name);
    }
  }
}

TEST_F(TensorFiguresTest, AreThoseOfAnUpdateOnceAndOfNoneAfterASkippedStep) {
  for (const Tier home : {Tier::kHost, Tier::kDevice}) {
    const EngineOptions options =
        Options({.name = "x", .parameters = home, .optimizer = home, .smallest_host = false});
    ToyRun run(options, 64_MiB);
    ASSERT_TRUE(run.created().ok()) << run.created().error().message;
    ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
    const float infinity = std::numeric_limits<float>::infinity();
    const auto updates_seen = [&](uint64_t t, float scale) {
      EXPECT_TRUE(run.Step(t, scale).ok());
      return !run.session().figures().updates.empty();
    };
    EXPECT_FALSE(updates_seen(1, 1));
    EXPECT_TRUE(updates_seen(2, infinity)) << "the first step's";
    EXPECT_GT(run.session().figures().gradients[0].nonfinite, 0U);
    EXPECT_FALSE(updates_seen(2, 1));
    EXPECT_EQ(run.session().figures().gradients[0].nonfinite, 0U);
    EXPECT_TRUE(updates_seen(3, 1));
  }
}

TEST_F(TensorFiguresTest, ZerosAreCountedInFloat16InTheFirstStepAndEveryTenthAfterIt) {
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16}) {
    for (const Tier home : {Tier::kHost, Tier::kDevice}) {
      const EngineOptions options =
          Options({.name = "x", .dtype = dtype, .parameters = home, .optimizer = home});
      ToyRun run(options, 64_MiB);
      ASSERT_TRUE(run.created().ok()) << run.created().error().message;
      ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
      for (uint64_t t = 1; t <= kCountedSteps + 1; ++t) {
        const bool small = t == 1;  // with the loss scale, far below what fp16 has
        ASSERT_TRUE(run.Step(t, small ? 1e-14F : 1.0F).ok());
        const std::vector<kernels::ZeroCounts>& zeros = run.session().figures().zeros;
        const bool counted = dtype == DType::kFloat16 && (t - 1) % kCountedSteps == 0;
        ASSERT_EQ(zeros.empty(), !counted) << t;
        size_t tensor = 0;
        for (const offload::ModuleLayout& module : run.session().layout().model.modules) {
          for (const offload::TensorLayout& of : module.tensors) {
            if (!counted) continue;
            EXPECT_LT(zeros[tensor].exact, of.elements / 2) << of.name;
            EXPECT_EQ(zeros[tensor].rounded == of.elements, small) << of.name;
            EXPECT_LE(zeros[tensor].rounded, of.elements) << of.name;
            ++tensor;
          }
        }
      }
    }
  }
}

TEST_F(TensorFiguresTest, AStepThatIsRepeatedIsNoneOfThoseBetweenTwoThatCountZeros) {
  ToyRun run(Options({.name = "repeated", .dtype = DType::kFloat16}), 64_MiB);
  ASSERT_TRUE(run.created().ok()) << run.created().error().message;
  ASSERT_TRUE(run.session().Initialize(ToyWeights).ok());
  uint64_t t = 1;
  for (uint64_t step = 1; step <= kCountedSteps + 1; ++step) {
    const bool skipped = step == 3;
    ASSERT_TRUE(run.Step(t, 1.0F, skipped ? kNaN : 1).ok());
    EXPECT_EQ(run.session().figures().zeros.empty(), (step - 1) % kCountedSteps != 0) << step;
    if (!skipped) {
      ++t;
      continue;
    }
    Result<Step> again = run.session().RepeatStep();
    ASSERT_TRUE(again.ok()) << again.error().message;
    ASSERT_TRUE(again->Drop().ok());
  }
}

TEST_F(TensorFiguresTest, CountWhatIsNotFiniteInTheTensorThatHasIt) {
  EngineOptions options = Options({.name = "host", .parameters = Tier::kHost});
  options.config.optimizer_home = Tier::kHost;
  const offload::ShardLayout layout = MakeLayout(options.model, options.config);
  TensorFigures figures(layout);
  size_t tensor = 0;
  for (const ModuleId module : offload::Ids<ModuleId>(layout.model.modules.size())) {
    for (size_t i = 0; i < layout.module(module).tensors.size(); ++i, ++tensor) {
      const offload::TensorLayout& place = layout.module(module).tensors[i];
      for (const offload::TileId tile : layout.Tiles()) {
        const offload::TileLayout& at = layout.tile(tile);
        std::vector<kernels::BFloat16> gradient(at.elements, kernels::RoundToBFloat16(1));
        // The last element of the tensor.
        const uint64_t last = place.offset + place.elements - 1;
        const bool here = at.module == module && last >= at.begin && last < at.begin + at.elements;
        if (here) {
          gradient[last - at.begin] =
              kernels::RoundToBFloat16(std::numeric_limits<float>::infinity());
        }
        std::vector<double> sums(at.elements / kBlockElements);
        std::vector<float> largest(sums.size());
        std::vector<uint32_t> nonfinite(sums.size());
        const kernels::BlockFigures blocks{
            .sums = sums, .largest = largest, .nonfinite = nonfinite};
        kernels::BlockSumsAndFigures(gradient.data(), DType::kBFloat16, at.elements, blocks);
        figures.TakeGradient(tile, reinterpret_cast<const std::byte*>(gradient.data()), blocks);
      }
      const std::vector<kernels::GradientFigures> found = figures.Gradients();
      for (size_t other = 0; other < found.size(); ++other) {
        EXPECT_EQ(found[other].nonfinite, other == tensor ? 1U : 0U) << place.name;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::zero
