// Compares two models, tensor by tensor, to find what a restart or an export has changed.
//
// One streamed pass: memory is a tile and a fixed chunk of each side, for any model size.
// Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "tools/compared_model.h"
#include "tools/value_difference.h"

namespace penstock::train {

struct TensorDifference {
  std::string name;
  zero::StateKind state;
  DType dtype_a;
  DType dtype_b;
  std::vector<uint64_t> shape;
  ValueDifference values;
};

struct Comparison {
  /// Differences other than values, a line each: tensors that one side lacks, shapes, parameter
  /// groups, step numbers.
  std::vector<std::string> mismatches;
  std::vector<TensorDifference> differences;
  uint64_t different_tensors = 0;
  uint64_t tensors = 0;   ///< tensors that both have, with the same shape
  uint64_t elements = 0;  ///< elements of these
  uint64_t widened = 0;   ///< tensors of different dtypes: compared as fp32, which is exact
  std::vector<zero::StateKind> states;  ///< the states compared: those that both sides have

  bool equal() const { return mismatches.empty() && differences.empty(); }
};

/// Compares weights; of two runs also their moments, parameter groups and step numbers. The tied
/// output layer is compared only if both sides store it. Errors: of reading.
Result<Comparison> Compare(ComparedModel& a, ComparedModel& b);

/// Returns a row for each difference, and a summary line.
std::string ToTable(const Comparison& comparison);

}  // namespace penstock::train
