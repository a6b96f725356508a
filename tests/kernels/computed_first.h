// The test of one call that adds to gradients: what it adds must not depend on what is there.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tests/kernels/device_harness.h"

namespace penstock::kernels {

/// What `call` makes of fp32 gradients of these values.
inline std::vector<std::vector<float>> AddedTo(
    DeviceHarness& harness, const std::vector<Values>& gradients,
    const std::function<void(const std::vector<float*>&)>& call) {
  std::vector<Tensor> tensors;
  std::vector<float*> addresses;
  for (const Values& values : gradients) {
    tensors.push_back(harness.Put(DType::kFloat32, values));
    addresses.push_back(tensors.back().floats());
  }
  call(addresses);
  std::vector<std::vector<float>> results;
  for (const Tensor& tensor : tensors) {
    results.push_back(harness.GetElements<float>(tensor.data(), tensor.size));
  }
  return results;
}

/// Runs `call` on gradients of zeros and on random ones, whose numbers of elements are `sizes`: one
/// addition of what the zeros became must lead from the random ones to what these became.
inline void ExpectComputedFirst(DeviceHarness& harness, const std::vector<uint64_t>& sizes,
                                const std::function<void(const std::vector<float*>&)>& call,
                                const std::string& what) {
  std::vector<Values> zeros;
  std::vector<Values> random;
  for (const uint64_t size : sizes) {
    zeros.emplace_back(size, 0.0);
    random.push_back(RandomValues(DType::kFloat32, size, 100 + size));
  }
  const auto alone = AddedTo(harness, zeros, call);
  const auto sums = AddedTo(harness, random, call);
  for (size_t t = 0; t < sizes.size(); ++t) {
    EXPECT_TRUE(std::ranges::any_of(alone[t], [](float value) { return value != 0; })) << what;
    for (size_t i = 0; i < sizes[t]; ++i) {
      const float want = static_cast<float>(random[t][i]) + alone[t][i];
      ASSERT_EQ(std::bit_cast<uint32_t>(sums[t][i]), std::bit_cast<uint32_t>(want))
          << what << ", gradient " << t << " [" << i << "]: " << random[t][i] << " + "
          << alone[t][i] << " became " << sums[t][i];
    }
  }
}

}  // namespace penstock::kernels
