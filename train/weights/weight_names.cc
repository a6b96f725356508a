#include "train/weights/weight_names.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

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
  std::vector<std::string> names;
  std::error_code error;
  fs::directory_iterator it(folder, error);
  for (; !error && it != fs::directory_iterator(); it.increment(error)) {
    std::string name = it->path().filename().string();
    if (HoldsWeights(name)) names.push_back(std::move(name));
  }
  if (error) return ErrnoError(error.value(), fmt::format("cannot list folder {}", folder));
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace penstock::train
