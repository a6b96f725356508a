// A model's weights from safetensors files, as a source that the engine draws tiles from.
//
// Names as in train/tensor_catalog.h; a tied output layer ("lm_head.weight") beside the embedding
// is left out.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "train/safetensors_set.h"
#include "zero/engine.h"
#include "zero/model.h"

namespace penstock::train {

struct WeightFiles {
  /// Reads elements from the files, which it keeps open. Errors: kIo; kInvalidArgument for a value
  /// that is not finite, naming file, tensor and element. Threads: any number may call it.
  zero::TensorSource source;
  std::vector<std::string> notices;  ///< tensors that the model has no place for
};

/// Opens the files and finds every tensor of `model` in them, before any is read. Errors: those of
/// TensorCatalog; kInvalidArgument for a tensor that is missing, has another shape or is not stored
/// as F32, BF16 or F16, naming file, tensor and shapes. Precondition: at least one file.
Result<WeightFiles> OpenWeights(const SafetensorsSet& set, const zero::ModelSpec& model);

}  // namespace penstock::train
