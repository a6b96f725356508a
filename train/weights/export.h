// Exports a committed state as a model that Hugging Face's from_pretrained loads: config.json and
// safetensors.
//
// The export is streamed, in a few MiB of memory for any model size. config.json is written last,
// so a folder that has it holds a whole model. A failed export removes what it wrote.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "base/result.h"
#include "base/units.h"
#include "train/models/family.h"
#include "zero/states/committed_state.h"
#include "zero/states/value_check.h"

namespace penstock::train {

struct ExportOptions {
  std::string folder;  ///< created with its parents if it is missing
  /// Of the model. None: tensors keep their names, and no config.json is written.
  const ModelFamily* family = nullptr;
  std::string config_json;  ///< the model's config.json as it was read, with a family
  DType dtype = DType::kFloat32;
  /// The largest safetensors file, not counting its header; a tensor above it has a file of its
  /// own. One file is "model.safetensors"; several are numbered and have
  /// "model.safetensors.index.json".
  Bytes shard_limit{5'000'000'000};
  std::function<bool()> stop_requested = [] { return false; };  ///< asked before every chunk
  /// Called before every chunk with the numbers of written and of all elements. May be empty.
  std::function<void(uint64_t done, uint64_t all)> progress;
};

struct ExportReport {
  std::vector<std::string> files;  ///< paths, in the order they were written
  uint64_t elements = 0;
  Bytes tensor_bytes;
  /// What is wrong with the weights, under the names of the files.
  std::vector<zero::ValueFault> faults;
};

/// Values: fp32 is the exact master. bf16 of a bf16 run is what the run computes with (the hi half
/// of the split master); of an fp32 run it is rounded to nearest even, as fp16 always is. The tied
/// output layer is not stored. Errors: kInvalidArgument (the folder holds a model already or is a
/// file, a weight is beyond the range of fp16, a broken config); kCancelled if asked to stop; those
/// of CommittedState and of SafetensorsWriter.
Result<ExportReport> ExportModel(zero::CommittedState& state, const ExportOptions& options);

}  // namespace penstock::train
