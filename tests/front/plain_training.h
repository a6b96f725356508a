// The small model of tests/front/c_training.h trained in plain memory, by the rule and the norm
// that the C interface offers as references.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "tests/front/c_training.h"

namespace penstock::front {

inline constexpr uint64_t kSteps = 4;

/// A tensor's planes in plain memory.
struct Plain {
  Values weight;
  std::vector<int16_t> lo;
  std::vector<float> master;
  std::vector<float> exp_avg;
  std::vector<float> exp_avg_sq;

  explicit Plain(Values first) : weight(std::move(first)) {
    const uint64_t n = weight.bytes.size() / SizeOfCode(weight.dtype);
    exp_avg.resize(n);
    exp_avg_sq.resize(n);
    if (weight.dtype == PENSTOCK_BFLOAT16) lo.resize(n);
    for (uint64_t i = 0; weight.dtype == PENSTOCK_FLOAT16 && i < n; ++i) {
      master.push_back(weight.At(i));
    }
  }
  uint64_t count() const { return exp_avg.size(); }
  std::vector<float> Masters() const {
    std::vector<float> masters(count());
    for (uint64_t i = 0; i < count(); ++i) {
      masters[i] = weight.At(i);
      if (!master.empty()) masters[i] = master[i];
      if (lo.empty()) continue;
      uint16_t hi = 0;
      std::memcpy(&hi, weight.bytes.data() + 2 * i, 2);
      masters[i] = kernels::Join({kernels::BFloat16{hi}, lo[i]});
    }
    return masters;
  }
};

/// Micro-batches are summed in fp32 and rounded once.
inline Values SumOf(const Values& weight, uint64_t micro_batches) {
  if (micro_batches == 1) return GradientOf(weight, 0);
  const uint64_t n = weight.bytes.size() / SizeOfCode(weight.dtype);
  std::vector<float> sums(n);
  for (uint64_t batch = 0; batch < micro_batches; ++batch) {
    const Values gradient = GradientOf(weight, batch);
    for (uint64_t i = 0; i < n; ++i) {
      sums[i] = batch == 0 ? gradient.At(i) : sums[i] + gradient.At(i);
    }
  }
  Values sum(weight.dtype, n);
  for (uint64_t i = 0; i < n; ++i) sum.Set(i, sums[i]);
  return sum;
}

/// The sums of squares of the tensors of each unit, which lie block by block in its flat index: a
/// tensor alone in its group begins a block.
inline double NormOf(const std::vector<std::vector<Values>>& gradients) {
  double sum = 0;
  for (const std::vector<Values>& unit : gradients) {
    for (const Values& tensor : unit) {
      const uint64_t n = tensor.bytes.size() / SizeOfCode(tensor.dtype);
      std::vector<double> sums((n + 4095) / 4096);
      int finite = 0;
      EXPECT_EQ(penstock_block_sums(tensor.bytes.data(), tensor.dtype, n, sums.data(), &finite),
                PENSTOCK_OK);
      EXPECT_EQ(finite, 1);
      for (const double block : sums) sum += block;
    }
  }
  return std::sqrt(sum);
}

/// The same training in plain memory.
inline Trained TrainPlainly(const std::string& dtype, uint64_t micro_batches, double max_norm = 0) {
  std::vector<std::vector<Plain>> units(kUnits);
  for (uint32_t unit = 0; unit < kUnits; ++unit) {
    for (uint32_t tensor = 0; tensor < kTensors; ++tensor) {
      units[unit].emplace_back(
          FirstWeights(tensor == 1 ? PENSTOCK_FLOAT32 : CodeOf(dtype), unit, tensor));
    }
  }
  const std::string config = ConfigOf(kHomes[0], "").dump();
  Trained trained;
  for (uint64_t t = 1; t <= kSteps; ++t) {
    std::vector<std::vector<Values>> gradients(kUnits);
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      for (const uint32_t tensor : {0U, 1U}) {
        gradients[unit].push_back(SumOf(units[unit][tensor].weight, micro_batches));
      }
    }
    const double norm = NormOf(gradients);
    trained.norms.push_back(norm);
    const double scale = max_norm > 0 ? 1.0 / std::max(1.0, (norm + 1e-6) / max_norm) : 1;
    for (uint32_t unit = 0; unit < kUnits; ++unit) {
      for (const uint32_t tensor : {0U, 1U}) {
        Plain& plain = units[unit][tensor];
        const penstock_elements elements{
            .count = plain.count(),
            .weight = plain.weight.bytes.data(),
            .lo = plain.lo.empty() ? nullptr : plain.lo.data(),
            .master = plain.master.empty() ? nullptr : plain.master.data(),
            .exp_avg = plain.exp_avg.data(),
            .exp_avg_sq = plain.exp_avg_sq.data(),
            .gradient = gradients[unit][tensor].bytes.data(),
            .weight_dtype = plain.weight.dtype};
        EXPECT_EQ(penstock_reference_update(config.c_str(), &kGroups[tensor], t, scale, &elements),
                  PENSTOCK_OK)
            << penstock_error();
      }
    }
  }
  for (const std::vector<Plain>& unit : units) {
    for (const Plain& plain : unit) {
      trained.weights.push_back(plain.weight.bytes);
      trained.masters.push_back(plain.Masters());
    }
  }
  return trained;
}

}  // namespace penstock::front
