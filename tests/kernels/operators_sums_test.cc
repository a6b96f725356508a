// Gradients of several calls: the sum is that of what each call gives alone.
#include <vector>

#include "tests/kernels/computed_first.h"
#include "tests/kernels/operators_layer_shapes.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

/// Those of a layer; one whose head takes several chunks on the CPU; and one with a weight of more
/// than 2^20 elements, which the CPU adds panel by panel.
std::vector<LayerShapes> SummedShapes() {
  std::vector<LayerShapes> shapes(std::begin(kLayerShapes), std::end(kLayerShapes));
  shapes.push_back(
      {.batch = 2, .sequence = 75, .width = 16, .heads = 1, .hidden = 16, .vocabulary = 4099});
  shapes.push_back(
      {.batch = 1, .sequence = 3, .width = 520, .heads = 8, .hidden = 2080, .vocabulary = 11});
  return shapes;
}

std::string NameOf(const LayerShapes& shapes, int threads) {
  return std::to_string(Rows(shapes)) + " rows of " + std::to_string(shapes.width) + ", " +
         std::to_string(threads) + " threads";
}

class SumsTest : public OperatorsTest {
 protected:
  /// The operators of a layer with what its backward reads.
  struct Layer {
    Layer(const SumsTest& test, const LayerShapes& of, int threads, bool adds_once)
        : shapes(of),
          adds_once(adds_once),
          harness(test.mode(), of, Options(test.mode(), of, threads, adds_once)),
          x(harness.Put(test.Random(Rows(of) * of.width, 1))),
          wide(harness.Put(test.Random(Rows(of) * 3 * of.width, 2))),
          hidden(harness.Put(test.Random(Rows(of) * of.hidden, 3))),
          table(harness.Put(test.Random(of.vocabulary * of.width, 4))),
          statistics(harness.Put(DType::kFloat32, RandomValues(DType::kFloat32, Rows(of), 5))),
          d_x(harness.Empty(Rows(of) * of.width)),
          tokens(harness.PutIntegers(RandomTokens(of))),
          loss(harness.PutDouble(0)) {}

    static OperatorOptions Options(const Mode& mode, const LayerShapes& of, int threads,
                                   bool adds_once) {
      OperatorOptions options = LayerOptions(mode.dtype, of, threads);
      options.adds_once = adds_once;
      return options;
    }
    /// Few different ones, so that rows meet.
    static std::vector<int32_t> RandomTokens(const LayerShapes& of) {
      std::vector<int32_t> tokens(Rows(of));
      for (uint64_t i = 0; i < tokens.size(); ++i) {
        tokens[i] = static_cast<int32_t>(RandomBits(9, i) % 5 * (of.vocabulary / 5));
      }
      return tokens;
    }

    // What adds to gradients, and how large these are.
    std::vector<uint64_t> embedding_sizes() const {
      return {shapes.vocabulary * shapes.width, shapes.sequence * shapes.width};
    }
    void Embedding(const std::vector<float*>& gradients) {
      harness.operators().EmbeddingBackward(harness.stream(), tokens.as<int32_t>(), x.data(),
                                            gradients[0], gradients[1], adds_once);
    }
    std::vector<uint64_t> norm_sizes() const { return {shapes.width, shapes.width}; }
    void Norm(const std::vector<float*>& gradients) {
      harness.operators().LayerNormBackward(harness.stream(), x.data(), table.data(),
                                            statistics.floats(), statistics.floats(), x.data(),
                                            false, d_x.data(), gradients[0], gradients[1]);
    }
    std::vector<uint64_t> wide_sizes() const {
      return {shapes.width * 3 * shapes.width, 3 * shapes.width};
    }
    void Wide(const std::vector<float*>& gradients) {
      harness.operators().LinearBackwardWeight(harness.stream(), x.data(), wide.data(),
                                               shapes.width, 3 * shapes.width, gradients[0],
                                               gradients[1]);
    }
    std::vector<uint64_t> narrow_sizes() const {
      return {shapes.hidden * shapes.width, shapes.width};
    }
    void Narrow(const std::vector<float*>& gradients) {
      harness.operators().LinearBackwardWeight(harness.stream(), hidden.data(), x.data(),
                                               shapes.hidden, shapes.width, gradients[0],
                                               gradients[1]);
    }
    std::vector<uint64_t> head_sizes() const { return {shapes.vocabulary * shapes.width}; }
    void Head(const std::vector<float*>& gradients) {
      harness.operators().HeadForwardBackward(harness.stream(), x.data(), table.data(),
                                              tokens.as<int32_t>(), 0.125F, loss.as<double>(),
                                              d_x.data(), gradients[0]);
    }

    const LayerShapes shapes;
    const bool adds_once;
    OperatorsHarness harness;
    Tensor x, wide, hidden, table, statistics, d_x;
    device::DeviceBuffer tokens, loss;
  };
};

TEST_P(SumsTest, WhatACallAddsIsComputedFirst) {
  for (const LayerShapes& shapes : SummedShapes()) {
    for (const int threads : {1, 2}) {
      Layer layer(*this, shapes, threads, true);
      const auto expect = [&](const char* what, const std::vector<uint64_t>& sizes,
                              void (Layer::*call)(const std::vector<float*>&)) {
        ExpectComputedFirst(
            layer.harness, sizes,
            [&](const std::vector<float*>& gradients) { (layer.*call)(gradients); },
            std::string(what) + ", " + NameOf(shapes, threads));
      };
      expect("embedding", layer.embedding_sizes(), &Layer::Embedding);
      expect("norm", layer.norm_sizes(), &Layer::Norm);
      expect("wide map", layer.wide_sizes(), &Layer::Wide);
      expect("narrow map", layer.narrow_sizes(), &Layer::Narrow);
      expect("head", layer.head_sizes(), &Layer::Head);
    }
  }
}

TEST_P(SumsTest, OntoZerosItIsTheSameHoweverItIsAdded) {
  for (const LayerShapes& shapes : SummedShapes()) {
    const auto added = [&](bool adds_once) {
      Layer layer(*this, shapes, 2, adds_once);
      const auto onto_zeros = [&](const std::vector<uint64_t>& sizes,
                                  void (Layer::*call)(const std::vector<float*>&)) {
        std::vector<Values> zeros;
        for (const uint64_t size : sizes) zeros.emplace_back(size, 0.0);
        return AddedTo(layer.harness, zeros, [&](const auto& at) { (layer.*call)(at); });
      };
      return std::make_pair(onto_zeros(layer.embedding_sizes(), &Layer::Embedding),
                            onto_zeros(layer.head_sizes(), &Layer::Head));
    };
    const auto once = added(true);
    const auto piecewise = added(false);
    EXPECT_EQ(once.first, piecewise.first) << "embedding, " << NameOf(shapes, 2);
    EXPECT_EQ(once.second, piecewise.second) << "head, " << NameOf(shapes, 2);
  }
}

/// A vocabulary whose logits are cut into chunks of 128 rows on every device.
constexpr HeadCall kLargeHead{.rows = 150, .width = 16, .vocabulary = 600'001};

TEST_P(SumsTest, AHeadOfSeveralChunksTakesTheTablesGradientMoreToAddOnce) {
  const auto scratch = [&](uint64_t rows, bool adds_once) {
    HeadCall call = kLargeHead;
    call.dtype = mode().dtype;
    call.rows = rows;
    return TestedScratch(mode(), {.calls = {call}, .adds_once = adds_once, .threads = 2}).value();
  };
  const Bytes table{kLargeHead.vocabulary * kLargeHead.width * sizeof(float)};
  EXPECT_EQ(scratch(150, true) - scratch(150, false), AlignUp(table, device::kDeviceAlignment));
  EXPECT_EQ(scratch(128, true), scratch(128, false)) << "one chunk";
}

INSTANTIATE_TEST_SUITE_P(Modes, SumsTest, AllModes(), ModeName);

}  // namespace
}  // namespace penstock::kernels
