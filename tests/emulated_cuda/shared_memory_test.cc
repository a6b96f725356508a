// Attention on GPUs whose blocks have less shared memory than those that it is made for.
#include <cstddef>
#include <string>
#include <vector>

#include "tests/emulated_cuda/cudart.h"
#include "tests/kernels/operators_testing.h"

namespace penstock::kernels {
namespace {

/// Compute capability 9.0, and 8.6, 8.9 and 12.
constexpr size_t kLarge = 227 * 1024;
constexpr size_t kSmall = 99 * 1024;

class SharedMemoryTest : public ::testing::Test {
 protected:
  ~SharedMemoryTest() override { emulated_cuda::SetSharedMemoryOfBlock(kLarge); }

  /// The output, and behind it the gradient.
  static std::vector<std::byte> Attention(const Mode& mode, const LayerShapes& shapes,
                                          size_t shared) {
    emulated_cuda::SetSharedMemoryOfBlock(shared);
    OperatorsHarness harness(mode, shapes);
    const uint64_t size = shapes.batch * shapes.sequence * shapes.width;
    const Tensor qkv = harness.Put(RandomValues(mode.dtype, 3 * size, 1));
    const Tensor d_out = harness.Put(RandomValues(mode.dtype, size, 2));
    const Tensor out = harness.Empty(size);
    const Tensor d_qkv = harness.Empty(3 * size);
    harness.operators().AttentionForward(harness.stream(), qkv.data(), out.data());
    harness.operators().AttentionBackward(harness.stream(), qkv.data(), out.data(), d_out.data(),
                                          d_qkv.data());
    std::vector<std::byte> all = harness.GetBytes(out);
    const std::vector<std::byte> gradient = harness.GetBytes(d_qkv);
    all.insert(all.end(), gradient.begin(), gradient.end());
    return all;
  }
};

TEST_F(SharedMemoryTest, AttentionHasTheSameBitsWhereABlockHas99KiB) {
  for (const Mode& mode : TestedModes()) {
    for (const uint64_t head : {64, 80, 128}) {
      const LayerShapes shapes{
          .batch = 1, .sequence = 165, .width = 2 * head, .heads = 2, .hidden = 8, .vocabulary = 8};
      EXPECT_EQ(Attention(mode, shapes, kSmall), Attention(mode, shapes, kLarge))
          << mode.name << ", " << head;
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
