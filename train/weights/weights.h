// A model's weights from safetensors files, as a source from which the engine fills tiles.
//
// Names are those of train/weights/tensor_catalog.h; a tied output layer beside the embedding is
// left out.
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "train/models/family.h"
#include "train/weights/safetensors_set.h"
#include "zero/model.h"
#include "zero/states/tile_fill.h"

namespace penstock::train {

struct WeightFiles {
  /// Reads elements from the files, which it keeps open. Errors: kIo; kInvalidArgument for a value
  /// that is not finite, naming file, tensor and element. Threads: any number may call it.
  zero::TensorSource source;
  std::vector<std::string> notices;  ///< tensors for which the model has no place
};

/// Opens the files and finds every tensor of `model` in them, before any is read. Errors: those of
/// TensorCatalog; kInvalidArgument for a tensor that is missing, has another shape or is not stored
/// as F32, BF16 or F16, naming file, tensor and shapes. Precondition: at least one file.
Result<WeightFiles> OpenWeights(const SafetensorsSet& set, const zero::ModelSpec& model,
                                const TensorNames& names);

}  // namespace penstock::train
