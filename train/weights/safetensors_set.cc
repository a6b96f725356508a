#include "train/weights/safetensors_set.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/files.h"
#include "base/strict_json.h"
#include "base/units.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr Bytes kMaxIndex = 256_MiB;

Result<SafetensorsIndex> ReadIndex(const fs::path& path, const std::vector<std::string>& files) {
  PENSTOCK_ASSIGN(const std::string text, ReadTextFile(path.string(), kMaxIndex));
  PENSTOCK_ASSIGN(const json object,
                  ParseJsonObject(text, path.string(), ErrorCode::kInvalidArgument));
  const auto map = object.find("weight_map");
  if (map == object.end() || !map->is_object()) {
    return MakeError(ErrorCode::kInvalidArgument, "{} has no object \"weight_map\"", path.string());
  }
  SafetensorsIndex index{.path = path.string(), .file_of = {}};
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    std::string found = (path.parent_path() / name).string();
    if (name.empty() || std::find(files.begin(), files.end(), found) == files.end()) {
      return MakeError(ErrorCode::kNotFound,
                       "{} says that tensor {} is in {}, and there is no such *.safetensors file "
                       "beside it; the model is incomplete",
                       path.string(), tensor, Excerpt(file));
    }
    index.file_of.emplace(tensor, std::move(found));
  }
  return index;
}

}  // namespace

Result<SafetensorsSet> FindSafetensors(const std::string& folder) {
  SafetensorsSet set;
  std::vector<std::string> indices;
  PENSTOCK_ASSIGN(const std::vector<std::string> names, NamesIn(folder));
  for (const std::string& name : names) {
    std::string path = (fs::path(folder) / name).string();
    if (name.starts_with('.')) continue;
    if (name.ends_with(".safetensors.index.json")) {
      indices.push_back(std::move(path));
    } else if (name.ends_with(".safetensors")) {
      set.files.push_back(std::move(path));
    }
  }
  for (const std::string& path : indices) {
    PENSTOCK_ASSIGN(SafetensorsIndex index, ReadIndex(path, set.files));
    set.indices.push_back(std::move(index));
  }
  return set;
}

}  // namespace penstock::train
