// The JSON texts with which a caller of the C interface describes its model and its options
// (docs/c_api.md).
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"
#include "zero/model.h"
#include "zero/session/step_life.h"

namespace penstock::front {

/// Reads the model's text. Errors: kInvalidArgument, naming the key: unknown keys, duplicate names,
/// tensors without elements or of unknown groups, trained groups after frozen ones.
Result<zero::ModelSpec> ParseModel(const std::string& text);

struct Options {
  std::vector<std::string> folders;        ///< one for each path
  std::vector<std::string> continue_from;  ///< the files of a committed state; none: a new one
  std::optional<uint64_t> step;            ///< the only commit that may be resumed
  std::optional<Bytes> host_memory;
  uint32_t slots = 2;  ///< the caller's buffers of repeated units
  uint64_t seed = 0;
  bool cuda = false;  ///< the caller's weights and gradients are on a GPU
  zero::LossReports losses = zero::LossReports::kAsFirstStep;
  bool scales_loss = false;  ///< the loss is scaled by the engine's loss scale
  /// Memory that the caller has on the GPU for sums of micro-batches; none: it adds up none.
  std::optional<Bytes> device_sums;
  bool holds_gradients = false;
};

/// Reads the options' text. Errors: kInvalidArgument, naming the key.
Result<Options> ParseOptions(const std::string& text);

}  // namespace penstock::front
