// The JSON texts that a caller of the C interface describes its model and its wishes with
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

/// Reads the model's text. Errors: kInvalidArgument, naming the key: unknown keys, names that are
/// there twice, tensors without elements or of unknown groups, trained groups behind frozen ones.
Result<zero::ModelSpec> ParseModel(const std::string& text);

struct Options {
  std::vector<std::string> folders;        ///< one for each path
  std::vector<std::string> continue_from;  ///< the files of a committed state; none: a new one
  std::optional<uint64_t> step;            ///< of the one commit of it that may be continued
  std::optional<Bytes> host_memory;
  uint32_t slots = 2;  ///< the caller's buffers of repeated units
  uint64_t seed = 0;
  bool cuda = false;  ///< the caller's weights and gradients are on a GPU
  zero::LossReports losses = zero::LossReports::kAsFirstStep;
  bool scales_loss = false;  ///< by what the engine says, as the configuration has it
  /// What the caller spares on the GPU for sums of micro-batches; none: it adds up none.
  std::optional<Bytes> device_sums;
};

/// Reads the options' text. Errors: kInvalidArgument, naming the key.
Result<Options> ParseOptions(const std::string& text);

}  // namespace penstock::front
