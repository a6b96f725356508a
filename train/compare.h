// Two models, tensor by tensor: the tool that finds what a restart or an export has changed.
//
// One streamed pass: memory is a tile and a fixed chunk of each side, whatever the model's size.
// Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/result.h"
#include "train/compared_model.h"
#include "train/value_difference.h"

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
  /// What differs beside values, a line each: tensors that one side lacks, shapes, parameter
  /// groups, step numbers.
  std::vector<std::string> mismatches;
  std::vector<TensorDifference> differences;
  uint64_t different_tensors = 0;
  uint64_t tensors = 0;   ///< that both have, in one shape
  uint64_t elements = 0;  ///< of these
  uint64_t widened = 0;  ///< tensors of different dtypes: compared as fp32, which holds all exactly
  std::vector<zero::StateKind> states;  ///< what was compared: those that both sides have

  bool equal() const { return mismatches.empty() && differences.empty(); }
};

/// Compares weights; of two runs also their moments, parameter groups and step numbers. The tied
/// output layer ("lm_head.weight") is compared only where both sides store it. Errors: of reading.
Result<Comparison> Compare(ComparedModel& a, ComparedModel& b);

/// A row for each difference and a line that sums up.
std::string ToTable(const Comparison& comparison);

}  // namespace penstock::train
