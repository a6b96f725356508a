#include "train/models/registry.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "base/strict_json.h"
#include "train/models/gpt2_family.h"

namespace penstock::train {
namespace {

using nlohmann::json;

/// `"a"`, `"a" and "b"`, `"a", "b" and "c"`, with another word than "and".
std::string ListTypes(ModelFamilies families, const char* word) {
  std::string list;
  for (size_t i = 0; i < families.size(); ++i) {
    if (i > 0) list += i + 1 == families.size() ? fmt::format(" {} ", word) : ", ";
    list += fmt::format("\"{}\"", families[i]->model_type());
  }
  return list;
}

Result<const ModelFamily*> FindFamily(ConfigReader& config, ModelFamilies families) {
  const json* const type = config.Find("model_type");
  if (type == nullptr) {
    return config.Wrong("model_type", "is missing; it must be {}", ListTypes(families, "or"));
  }
  const auto found = std::ranges::find_if(
      families, [&](const ModelFamily* family) { return *type == family->model_type(); });
  if (found != families.end()) return *found;
  return config.Wrong("model_type", "is {}; only {} {} implemented", Excerpt(*type),
                      ListTypes(families, "and"), families.size() == 1 ? "is" : "are");
}

}  // namespace

ModelFamilies AllModelFamilies() {
  static const std::array<const ModelFamily*, 1> kFamilies = {
      &Gpt2Family(),
  };
  return kFamilies;
}

Result<ParsedModel> ParseModel(const std::string& text, const std::string& name,
                               ModelFamilies families) {
  PENSTOCK_ASSIGN(json object, ParseJsonObject(text, fmt::format("model config {}", name),
                                               ErrorCode::kInvalidArgument));
  ConfigReader config(name, std::move(object));
  PENSTOCK_ASSIGN(const ModelFamily* const family, FindFamily(config, families));
  PENSTOCK_ASSIGN(DescribedModel described, family->Read(config));
  return ParsedModel{.family = family, .described = std::move(described)};
}

const ModelFamily& GuessFamily(std::span<const std::string_view> tensors, ModelFamilies families) {
  PENSTOCK_CHECK(!families.empty());
  const auto which = [&](auto belongs) {
    return std::ranges::find_if(families, [&](const ModelFamily* family) {
      const TensorNames& names = family->names();
      return std::ranges::any_of(tensors,
                                 [&](std::string_view tensor) { return belongs(names, tensor); });
    });
  };
  auto found = which([](const TensorNames& names, std::string_view tensor) {
    return names.Plain(tensor) == names.embedding;
  });
  if (found == families.end()) {
    found = which([](const TensorNames& names, std::string_view tensor) {
      return !names.prefix.empty() && tensor.starts_with(names.prefix);
    });
  }
  return found == families.end() ? *families.front() : **found;
}

}  // namespace penstock::train
