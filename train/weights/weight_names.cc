#include "train/weights/weight_names.h"

#include <algorithm>
#include <string_view>

#include "base/files.h"

namespace penstock::train {
namespace {

/// Folders and files of DeepSpeed, Megatron, transformers' Trainer, PyTorch, TensorFlow and Flax.
constexpr std::string_view kPrefixes[] = {"global_step", "zero_pp_rank_", "mp_rank_",
                                          "iter_0",      "checkpoint-",   "pytorch_model",
                                          "tf_model",    "flax_model",    "rust_model"};
constexpr std::string_view kSuffixes[] = {"model.bin",
                                          ".pt",
                                          ".pth",
                                          ".ckpt",
                                          ".h5",
                                          ".hdf5",
                                          ".onnx",
                                          ".gguf",
                                          ".ggml",
                                          ".distcp",
                                          ".msgpack",
                                          ".safetensors",
                                          ".safetensors.index.json"};
constexpr std::string_view kNames[] = {"latest", "latest_checkpointed_iteration.txt",
                                       "saved_model.pb"};
/// TensorFlow's "model.ckpt-1000.index", "model.ckpt.data-00000-of-00001".
constexpr std::string_view kParts[] = {".ckpt-", ".ckpt."};

bool HoldsWeights(std::string_view name) {
  const auto any = [](const auto& list, const auto& holds) {
    return std::ranges::any_of(list, holds);
  };
  return any(kNames, [&](std::string_view whole) { return name == whole; }) ||
         any(kPrefixes, [&](std::string_view prefix) { return name.starts_with(prefix); }) ||
         any(kSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); }) ||
         any(kParts, [&](std::string_view part) { return name.find(part) != name.npos; });
}

}  // namespace

Result<std::vector<std::string>> FindWeightNames(const std::string& folder) {
  PENSTOCK_ASSIGN(std::vector<std::string> names, NamesIn(folder));
  std::erase_if(names, [](const std::string& name) { return !HoldsWeights(name); });
  return names;
}

}  // namespace penstock::train
