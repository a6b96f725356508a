// A model's weights from safetensors files, as a source that the engine draws tiles from.
//
// Names are Hugging Face's, with or without "transformer." before them. The tied output layer
// ("lm_head.weight") and the causal masks that old files keep ("h.N.attn.bias", "…masked_bias") are
// left out; where a file keeps the tied matrix only as "lm_head.weight", that is "wte.weight".
#pragma once

#include <string>
#include <vector>

#include "base/result.h"
#include "zero/engine.h"
#include "zero/model.h"

namespace penstock::train {

struct WeightFiles {
  /// Reads elements from the files, which it keeps open. Errors: kIo; kInvalidArgument for a value
  /// that is not finite, naming file, tensor and element. Threads: any number may call it.
  zero::TensorSource source;
  std::vector<std::string> notices;  ///< tensors that the model has no place for
};

/// Opens the files, which may be shards of one model, and finds every tensor of `model` in them,
/// before any is read. Errors: those of SafetensorsReader; kInvalidArgument for a tensor that is
/// missing, has another shape, is there twice or is not stored as F32, BF16 or F16, naming file,
/// tensor and shapes. Precondition: at least one file.
Result<WeightFiles> OpenWeights(const std::vector<std::string>& files,
                                const zero::ModelSpec& model);

}  // namespace penstock::train
