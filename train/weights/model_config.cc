#include "train/weights/model_config.h"

#include <filesystem>
#include <utility>

#include "base/files.h"
#include "train/weights/weight_names.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

constexpr Bytes kMaxConfig = 16_MiB;

}  // namespace

Result<ModelSource> ReadModel(const std::string& path, WeightsBeside beside,
                              ModelFamilies families) {
  std::error_code error;
  const bool folder = fs::is_directory(path, error);
  ModelSource source;
  source.config_path = folder ? (fs::path(path) / "config.json").string() : path;
  PENSTOCK_ASSIGN(source.config_json, ReadTextFile(source.config_path, kMaxConfig));
  PENSTOCK_ASSIGN(ParsedModel parsed, ParseModel(source.config_json, source.config_path, families));
  source.family = parsed.family;
  source.description = std::move(parsed.described.model);
  source.notices = std::move(parsed.described.notices);
  const fs::path parent = fs::path(source.config_path).parent_path();
  source.folder = parent.empty() ? std::string(".") : parent.string();
  PENSTOCK_ASSIGN(source.weight_names, FindWeightNames(source.folder));
  if (beside == WeightsBeside::kFind) {
    PENSTOCK_ASSIGN(source.weights, FindSafetensors(source.folder));
  }
  return source;
}

}  // namespace penstock::train
