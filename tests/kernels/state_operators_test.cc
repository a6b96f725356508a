// The operators on gradients and states: each bit is that of the reference on the CPU.
#include "kernels/state/state_operators.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "kernels/state/block_sums.h"
#include "tests/gpu_needed.h"
#include "tests/kernels/device_harness.h"
#include "tests/kernels/optimizer_steps.h"
#include "tests/kernels/optimizer_tile_data.h"

namespace penstock::kernels {
namespace {

/// A device, a stream, and state operators that share work between three threads.
class StateHarness : public DeviceHarness {
 public:
  StateOperators& operators() const { return *operators_; }

 private:
  const std::unique_ptr<StateOperators> operators_ =
      CreateStateOperators(device().kind(), 3).value();
};

class GradientsTest : public ::testing::Test {
 protected:
  void SetUp() override { PENSTOCK_SKIP_WHERE_MISSING(MissingDevice()); }
};

TEST_F(GradientsTest, RoundGradientsRoundsToNearestEven) {
  StateHarness harness;
  const uint64_t n = 5001;
  Values values = RandomValues(DType::kFloat32, n, 1);
  values[0] = 1 + 1.0 / 256;  // half way: to even, 1
  values[1] = 1 + 3.0 / 256;  // half way: to even, 1 + 2 / 128
  values[2] = INFINITY;
  values[n - 1] = NAN;
  const Tensor in = harness.Put(DType::kFloat32, values);
  const Tensor bf16 = harness.Empty(DType::kBFloat16, n);
  const Tensor fp32 = harness.Empty(DType::kFloat32, n);
  const Tensor fp16 = harness.Empty(DType::kFloat16, n);
  StateOperators& op = harness.operators();
  op.RoundGradients(harness.stream(), in.floats(), DType::kBFloat16, n, bf16.data());
  op.RoundGradients(harness.stream(), in.floats(), DType::kFloat32, n, fp32.data());
  op.RoundGradients(harness.stream(), in.floats(), DType::kFloat16, n, fp16.data());
  EXPECT_EQ(harness.GetBytes(fp32), harness.GetBytes(in));
  const auto exact = harness.GetElements<float>(in.data(), n);
  const auto as_bf16 = harness.GetElements<uint16_t>(bf16.data(), n);
  const auto as_fp16 = harness.GetElements<uint16_t>(fp16.data(), n);
  for (uint64_t i = 0; i < n; ++i) {
    ASSERT_EQ(as_bf16[i], RoundToBFloat16(exact[i]).bits) << exact[i];
    ASSERT_EQ(as_fp16[i], RoundToFloat16(exact[i])) << exact[i];
  }
}

TEST_F(GradientsTest, PartsAreAddedOneAfterTheOtherAndNothingBehindThem) {
  StateHarness harness;
  const uint64_t n = 5003;
  const uint64_t stride = 5120;
  const uint64_t count = 5;
  Values begin = RandomValues(DType::kFloat32, n + 1, 1);
  begin[0] = 1 << 24;  // 2^24 + 1 + 1 is 2^24, in this order only
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    Values parts = RandomValues(dtype, count * stride, 2);
    for (uint64_t part = 0; part < count; ++part) parts[part * stride] = 1;
    const Tensor sums = harness.Put(DType::kFloat32, begin);
    const Tensor rows = harness.Put(dtype, parts);
    harness.operators().AddInOrder(
        harness.stream(), reinterpret_cast<float*>(sums.data()), n,
        {.data = rows.data(), .dtype = dtype, .stride = stride, .count = count});
    const auto got = harness.GetElements<float>(sums.data(), n + 1);
    for (uint64_t i = 0; i < n; ++i) {
      auto want = static_cast<float>(begin[i]);
      for (uint64_t part = 0; part < count; ++part) {
        want += static_cast<float>(parts[part * stride + i]);
      }
      ASSERT_EQ(got[i], want) << ToString(dtype) << " " << i;
    }
    EXPECT_EQ(got[0], static_cast<float>(1 << 24));
    EXPECT_EQ(got[n], static_cast<float>(begin[n]));
  }
}

TEST_F(GradientsTest, TheFirstGradientIsTakenAsItIsAndOthersAreAdded) {
  StateHarness harness;
  const uint64_t n = 5003;
  Values begin = RandomValues(DType::kFloat32, n + 1, 1);
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const bool first : {true, false}) {
      Values values = RandomValues(dtype, n, 2);
      values[0] = -0.0;  // 0 + -0 would be 0
      const Tensor sums = harness.Put(DType::kFloat32, begin);
      const Tensor gradient = harness.Put(dtype, values);
      harness.operators().AddGradient(harness.stream(), gradient.data(), dtype, n, first,
                                      reinterpret_cast<float*>(sums.data()));
      const auto got = harness.GetElements<float>(sums.data(), n + 1);
      for (uint64_t i = 0; i < n; ++i) {
        const auto value = static_cast<float>(values[i]);
        ASSERT_EQ(got[i], first ? value : static_cast<float>(begin[i]) + value)
            << ToString(dtype) << " " << i;
      }
      EXPECT_EQ(std::signbit(got[0]), first || begin[0] < 0);
      EXPECT_EQ(got[n], static_cast<float>(begin[n]));
    }
  }
}

TEST_F(GradientsTest, BlockSumsEqualTheReference) {
  StateHarness harness;
  const uint64_t blocks = 5;
  const uint64_t n = blocks * kBlockElements;
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const bool finite : {true, false}) {
      Values values = RandomValues(dtype, n, 1);
      if (!finite) values[n - 3] = INFINITY;
      const Tensor gradient = harness.Put(dtype, values);
      const auto sums = harness.device().Allocate(Bytes{blocks * 8}, "sums").value();
      const auto flag = harness.device().Allocate(4_B, "flag").value();
      harness.operators().BlockSums(harness.stream(), gradient.data(), dtype, n, sums.as<double>(),
                                    flag.as<uint32_t>());
      const auto bytes = harness.GetBytes(gradient);
      std::vector<double> want(blocks);
      EXPECT_EQ(BlockSumsReference(bytes.data(), dtype, n, want), finite);
      EXPECT_EQ(harness.GetElements<uint32_t>(flag.data(), 1).front(), finite ? 1U : 0U);
      const auto got = harness.GetElements<double>(sums.data(), blocks);
      EXPECT_EQ(std::memcmp(got.data(), want.data(), blocks * 8), 0);
    }
  }
}

/// What GradientFigures leaves, of blocks and then of ends.
struct FoundFigures {
  std::vector<double> sums;
  std::vector<float> largest;
  std::vector<uint32_t> nonfinite;
};

FoundFigures FindFigures(StateHarness& harness, const Tensor& gradient, uint64_t n,
                         const std::vector<GradientEnd>& ends) {
  const uint64_t count = n / kBlockElements + ends.size();
  const auto sums = harness.device().Allocate(Bytes{count * 8}, "sums").value();
  const auto largest = harness.device().Allocate(Bytes{count * 4}, "largest").value();
  const auto nonfinite = harness.device().Allocate(Bytes{count * 4}, "counts").value();
  const auto table = harness.PutElements<GradientEnd>(ends);
  harness.operators().GradientFigures(
      harness.stream(), gradient.data(), gradient.dtype, n, table.as<GradientEnd>(), ends.size(),
      {sums.as<double>(), largest.as<float>(), nonfinite.as<uint32_t>()});
  return {.sums = harness.GetElements<double>(sums.data(), count),
          .largest = harness.GetElements<float>(largest.data(), count),
          .nonfinite = harness.GetElements<uint32_t>(nonfinite.data(), count)};
}

TEST_F(GradientsTest, FiguresOfBlocksAndOfEndsEqualTheReferenceAndSumsThoseOfBlockSums) {
  StateHarness harness;
  const uint64_t blocks = 5;
  const uint64_t n = blocks * kBlockElements;
  const std::vector<GradientEnd> ends = {
      {0, 1}, {1, 4095}, {2 * kBlockElements + 3, 37}, {n - 17, 17}};
  for (const DType dtype : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    for (const bool finite : {true, false}) {
      Values values = RandomValues(dtype, n, 1);
      if (!finite) values[n - 3] = values[n - 9] = -INFINITY;
      if (!finite) values[7] = NAN;
      const Tensor gradient = harness.Put(dtype, values);
      const FoundFigures got = FindFigures(harness, gradient, n, ends);
      const auto bytes = harness.GetBytes(gradient);
      std::vector<double> want(blocks);
      std::vector<float> want_largest(blocks);
      std::vector<uint32_t> want_nonfinite(blocks);
      EXPECT_EQ(BlockSumsAndFiguresReference(bytes.data(), dtype, n,
                                             {want, want_largest, want_nonfinite}),
                finite);
      for (const GradientEnd& end : ends) {
        const kernels::GradientFigures part =
            PartFigures(bytes.data() + end.begin * SizeOf(dtype).value, dtype, end.elements);
        want.push_back(part.sum_of_squares);
        want_largest.push_back(part.largest);
        want_nonfinite.push_back(static_cast<uint32_t>(part.nonfinite));
      }
      EXPECT_EQ(got.largest, want_largest);
      EXPECT_EQ(got.nonfinite, want_nonfinite);
      for (uint64_t i = 0; i < want.size(); ++i) {
        EXPECT_TRUE(got.sums[i] == want[i] || (std::isnan(got.sums[i]) && std::isnan(want[i])))
            << i;
      }
    }
  }
}

TEST_F(GradientsTest, ZerosAreCountedAsFloat16HasThemAndAddedToEarlierCounts) {
  StateHarness harness;
  const uint64_t n = 3 * kBlockElements + 77;
  Values values = RandomValues(DType::kFloat32, n, 1, 0x1p-24);
  values[0] = 0;
  values[5000] = -0.0;
  values[1] = 0x1p-25;  // half way: to even, zero
  values[2] = 0x1.000002p-25;
  values[3] = -0x1p-25;
  values[4] = NAN;
  values[n - 1] = INFINITY;
  const Tensor in = harness.Put(DType::kFloat32, values);
  const auto buffer = harness.device().Allocate(Bytes{sizeof(ZeroCounts)}, "counts").value();
  harness.stream().Zero(buffer.data(), buffer.size());
  for (uint64_t times = 1; times <= 2; ++times) {
    harness.operators().AddZeroCounts(harness.stream(), in.floats(), n, buffer.as<ZeroCounts>());
    ZeroCounts want;
    for (const float value : harness.GetElements<float>(in.data(), n)) {
      want.exact += value == 0 ? 1 : 0;
      want.rounded += (RoundToFloat16(value) & 0x7fff) == 0 ? 1 : 0;
    }
    EXPECT_GT(want.rounded, want.exact + 1000);
    const auto got = harness.GetElements<uint64_t>(buffer.data(), 2);
    EXPECT_EQ(got[0], times * want.exact);
    EXPECT_EQ(got[1], times * want.rounded);
  }
}

/// Calls `f` with each plane of `a` and the same one of `b`.
template <typename F>
void ForEachPlane(OptimizerTile& a, OptimizerTile& b, F f) {
  f(a.weight, b.weight);
  f(a.lo, b.lo);
  f(a.master, b.master);
  f(a.exp_avg, b.exp_avg);
  f(a.exp_avg_sq, b.exp_avg_sq);
}

TileData RandomTile(const TileFormat& format, uint64_t n) {
  TileData data(format, n);
  const Values weights = RandomValues(DType::kFloat32, n, 1);
  const Values gradients = RandomValues(DType::kFloat32, n, 2);
  for (uint64_t i = 0; i < n; ++i) {
    data.Set(i, static_cast<float>(weights[i]), 0.25F, 0.5F, static_cast<float>(gradients[i]));
  }
  return data;
}

class UpdateTest : public GradientsTest {
 protected:
  /// Calls `pass` with a tile on the device, whose planes go there and come back.
  template <typename Pass>
  static void OnDevice(StateHarness& harness, TileData& data, Pass pass) {
    OptimizerTile host = data.tile();
    OptimizerTile on_device = host;
    std::vector<device::DeviceBuffer> buffers;
    ForEachPlane(host, on_device, [&](const PlaneView& from, PlaneView& to) {
      if (from.empty()) return;
      buffers.push_back(harness.PutElements<std::byte>({from.data(), from.bytes().value}));
      to = {from.encoding(), buffers.back().data(), from.size()};
    });
    const Bytes gradient = SizeOf(host.gradient_dtype) * data.count();
    buffers.push_back(harness.PutElements<std::byte>(
        {static_cast<const std::byte*>(host.gradient), gradient.value}));
    on_device.gradient = buffers.back().data();
    pass(on_device);
    ForEachPlane(host, on_device, [&](const PlaneView& to, const PlaneView& from) {
      if (to.empty()) return;
      std::ranges::copy(harness.GetElements<std::byte>(from.data(), from.bytes().value), to.data());
    });
  }

  /// One step of a tile as one part. With `figures`, it is one of a tensor.
  static void Update(StateHarness& harness, const OptimizerScalars& scalars, TileData& data,
                     std::vector<WeightFigures>* figures = nullptr) {
    UpdateParts(harness, scalars, data, {{data.count(), figures == nullptr ? kNoTensor : 0}}, {},
                figures);
  }

  /// How many elements a part has, and which tensor's they are.
  struct Cut {
    uint64_t elements;
    uint64_t tensor;
  };
  /// One step of a tile that is cut into parts; `figures` are of the parts of tensors, which come
  /// first.
  static void UpdateParts(StateHarness& harness, const OptimizerScalars& scalars, TileData& data,
                          const std::vector<Cut>& cuts, const std::vector<float>& step_sizes,
                          std::vector<WeightFigures>* figures) {
    OnDevice(harness, data, [&](const OptimizerTile& tile) {
      const Table table(harness, tile, cuts);
      const auto sizes = harness.PutElements<float>(step_sizes);
      const PartsUpdate update{.scalars = scalars,
                               .rounding_key = tile.rounding.key,
                               .step_sizes = step_sizes.empty() ? nullptr : sizes.as<float>()};
      const auto pass = [&](WeightFigures* of_blocks) {
        harness.operators().Update(harness.stream(), update, table.parts, of_blocks);
      };
      if (figures == nullptr) {
        pass(nullptr);
        harness.Synchronize();  // before the table goes
      } else {
        *figures = FromBlocks<WeightFigures>(harness, table.parts.measured_blocks, pass);
      }
    });
  }

  static std::vector<TrustSums> SumForTrust(StateHarness& harness, const OptimizerScalars& scalars,
                                            TileData& data, const std::vector<Cut>& cuts) {
    std::vector<TrustSums> sums;
    OnDevice(harness, data, [&](const OptimizerTile& tile) {
      const Table table(harness, tile, cuts);
      sums = FromBlocks<TrustSums>(harness, table.parts.measured_blocks, [&](TrustSums* of_blocks) {
        harness.operators().SumForTrust(harness.stream(), scalars, table.parts, of_blocks);
      });
    });
    return sums;
  }

 private:
  /// The parts of a tile, in a table on the device.
  struct Table {
    Table(StateHarness& harness, const OptimizerTile& tile, const std::vector<Cut>& cuts) {
      std::vector<StatePart> all;
      uint64_t done = 0;
      for (const Cut& cut : cuts) {
        all.push_back(MakeStatePart(tile, done, cut.elements, cut.tensor));
        done += cut.elements;
      }
      // As a layout may have them, in any order of addresses.
      std::stable_partition(all.begin(), all.end(),
                            [](const StatePart& part) { return part.tensor != kNoTensor; });
      parts = MakeStateParts(tile, all);
      memory = harness.PutElements<StatePart>(all);
      parts.parts = memory.as<StatePart>();
    }
    device::DeviceBuffer memory;
    StateParts parts;
  };
  /// What a pass leaves of so many blocks.
  template <typename OfBlock, typename Pass>
  static std::vector<OfBlock> FromBlocks(StateHarness& harness, uint64_t blocks, Pass pass) {
    const auto left =
        harness.device().Allocate(Bytes{blocks * sizeof(OfBlock)}, "of blocks").value();
    pass(left.template as<OfBlock>());
    return harness.GetElements<OfBlock>(left.data(), blocks);
  }
};

TEST_F(UpdateTest, EveryRuleEqualsItsReferenceForEveryKindOfMasterAndMoments) {
  StateHarness harness;
  const uint64_t n = 4099;
  for (const OptimizerStep& step : OneStepOfEachRule()) {
    for (const TileFormat& format : AllFormats(step.exp_avg, step.exp_avg_sq)) {
      const TileData before = RandomTile(format, n);
      TileData expected = before;
      step.reference(expected.tile());
      TileData got = before;
      Update(harness, step.scalars, got);
      EXPECT_EQ(got.DifferencesFrom(expected), 0)
          << step.name << ", " << ::testing::PrintToString(format);
      EXPECT_GT(expected.DifferencesFrom(before), static_cast<int>(n));
    }
  }
}

TEST_F(UpdateTest, MeasuringChangesNoBitAndGivesTheFiguresOfTheWeights) {
  StateHarness harness;
  for (const uint64_t n : {uint64_t{4099}, 2 * kBlockElements}) {
    for (const OptimizerStep& step : OneStepOfEachRule()) {
      for (const TileFormat& format : AllFormats(step.exp_avg, step.exp_avg_sq)) {
        const TileData before = RandomTile(format, n);
        TileData expected = before;
        step.reference(expected.tile());
        TileData got = before;
        std::vector<WeightFigures> figures;
        Update(harness, step.scalars, got, &figures);
        EXPECT_EQ(got.DifferencesFrom(expected), 0) << step.name;
        WeightFigures want, all;
        for (uint64_t i = 0; i < n; ++i) {
          const double weight = got.weight(i), update = got.weight(i) - before.weight(i);
          want.sum_of_squares += weight * weight;
          want.update_sum_of_squares += update * update;
          want.largest = std::max(want.largest, std::abs(got.weight(i)));
        }
        for (const WeightFigures& block : figures) all.Add(block);
        EXPECT_NEAR(all.sum_of_squares, want.sum_of_squares, 1e-5 * want.sum_of_squares);
        EXPECT_NEAR(all.update_sum_of_squares, want.update_sum_of_squares,
                    1e-5 * want.update_sum_of_squares);
        EXPECT_EQ(all.largest, want.largest);
      }
    }
  }
}

TEST_F(UpdateTest, SumsForTrustRatiosEqualTheirReferenceAndWriteNothing) {
  StateHarness harness;
  for (const double decay : {0.0, 0.1}) {
    const LambScalars lamb = MakeLambScalars({.weight_decay = decay}, 1e-3, 3, 0.5);
    for (const uint64_t n : {uint64_t{5}, uint64_t{4099}, 2 * kBlockElements}) {
      for (const TileFormat& format : AllFormats(true, true)) {
        TileData data = RandomTile(format, n);
        std::vector<TrustSums> expected((n + kBlockElements - 1) / kBlockElements);
        LambSumsReference(lamb, data.tile(), expected);
        const TileData before = data;
        const std::vector<TrustSums> got = SumForTrust(harness, lamb, data, {{n, 0}});
        EXPECT_EQ(data.DifferencesFrom(before), 0);
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(got[i].weights, expected[i].weights) << ::testing::PrintToString(format);
          EXPECT_EQ(got[i].update, expected[i].update) << ::testing::PrintToString(format);
        }
      }
    }
  }
}

/// Cut within blocks, where a block begins, and behind; padding lies between tensors.
TEST_F(UpdateTest, PartsOfManyTensorsHaveTheBitsOfOneTileAndFiguresOfTheirOwn) {
  StateHarness harness;
  const uint64_t n = 4 * kBlockElements;
  const std::vector<Cut> cuts = {{37, 0},        {kBlockElements - 37, 1}, {2 * kBlockElements, 1},
                                 {5, kNoTensor}, {kBlockElements - 6, 2},  {1, kNoTensor}};
  for (const OptimizerStep& step : OneStepOfEachRule()) {
    for (const TileFormat& format : AllFormats(step.exp_avg, step.exp_avg_sq)) {
      const TileData before = RandomTile(format, n);
      TileData whole = before;
      step.reference(whole.tile());
      TileData got = before;
      std::vector<WeightFigures> figures;
      UpdateParts(harness, step.scalars, got, cuts, {}, &figures);
      EXPECT_EQ(got.DifferencesFrom(whole), 0)
          << step.name << ", " << ::testing::PrintToString(format);
      ASSERT_EQ(figures.size(), 1U + 1 + 2 + 1);
      uint64_t begin = 0;
      const WeightFigures* figure = figures.data();
      for (const Cut& cut : cuts) {
        float largest = 0;
        for (uint64_t i = begin; i < begin + cut.elements; ++i) {
          largest = std::max(largest, std::abs(got.weight(i)));
        }
        begin += cut.elements;
        if (cut.tensor == kNoTensor) continue;
        float found = 0;
        for (uint64_t block = 0; block < (cut.elements + kBlockElements - 1) / kBlockElements;
             ++block) {
          found = std::max(found, (figure++)->largest);
        }
        EXPECT_EQ(found, largest) << step.name;
      }
    }
  }
}

TEST_F(UpdateTest, EachTensorGoesAsFarAsItsOwnTrustRatioSays) {
  StateHarness harness;
  const uint64_t n = 2 * kBlockElements;
  const std::vector<Cut> cuts = {
      {37, 1}, {kBlockElements - 37, 0}, {100, kNoTensor}, {kBlockElements - 100, 2}};
  const LambScalars lamb = MakeLambScalars({.weight_decay = 0.1}, 1e-3, 3, 0.5);
  const std::vector<double> ratios = {0.5, 3, 0.01};
  std::vector<float> step_sizes;
  for (const double ratio : ratios) {
    step_sizes.push_back(WithTrustRatio(lamb, ratio).negative_step_size);
  }
  for (const TileFormat& format : AllFormats(true, true)) {
    TileData expected = RandomTile(format, n);
    TileData got = expected;
    uint64_t begin = 0;
    std::vector<TrustSums> want;
    for (const Cut& cut : cuts) {
      const OptimizerTile part = Part(expected.tile(), begin, cut.elements);
      if (cut.tensor != kNoTensor) LambSumsReference(lamb, part, {&want.emplace_back(), 1});
      LambUpdateReference(cut.tensor == kNoTensor ? lamb : WithTrustRatio(lamb, ratios[cut.tensor]),
                          part);
      begin += cut.elements;
    }
    const std::vector<TrustSums> sums = SumForTrust(harness, lamb, got, cuts);
    ASSERT_EQ(sums.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_EQ(sums[i].weights, want[i].weights) << ::testing::PrintToString(format);
      EXPECT_EQ(sums[i].update, want[i].update) << ::testing::PrintToString(format);
    }
    std::vector<WeightFigures> figures;
    UpdateParts(harness, lamb, got, cuts, step_sizes, &figures);
    EXPECT_EQ(got.DifferencesFrom(expected), 0) << ::testing::PrintToString(format);
  }
}

TEST(StatePartsTest, ABlockIsFoundInItsPartForAnySizes) {
  std::vector<StatePart> parts;
  std::vector<uint64_t> part_of_block;
  for (const uint64_t elements : {1ULL, 4096ULL, 4097ULL, 3ULL, 40960ULL, 4095ULL, 8192ULL}) {
    parts.push_back({.elements = elements, .tensor = 0});
    part_of_block.insert(part_of_block.end(), parts.back().blocks(), parts.size() - 1);
    const StateParts table = MakeStateParts({}, parts);
    ASSERT_EQ(table.blocks, part_of_block.size());
    for (uint64_t block = 0; block < table.blocks; ++block) {
      EXPECT_EQ(PartWithBlock(parts.data(), parts.size(), block), part_of_block[block]);
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
