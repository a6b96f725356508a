// Reads a model's name with shape: which keys a family has, and what stands for those not given.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <vector>

#include "base/edit_distance.h"
#include "base/units.h"
#include "sizing/model_shape.h"

namespace penstock::train {
namespace {

/// No matrix of a model has more rows; and a table of tokens has 32-bit ones.
constexpr uint64_t kMaxExtent = uint64_t{1} << 32;
/// What a plan takes unless s is given, where it is no parameter.
constexpr uint64_t kUsualSequence = 2048;

struct ShapeKey {
  std::string_view name;
  uint64_t least = 1;
  uint64_t most = kMaxExtent;
  /// What people write for it; the first is used in messages.
  std::array<std::string_view, 4> meanings;
};
constexpr std::array kShapeKeys = {
    ShapeKey{"h", 1, kMaxExtent, {"hidden_size", "n_embd", "d_model", "width"}},
    ShapeKey{"l", 1, kMaxExtent, {"layers", "n_layer", "num_layers", "num_hidden_layers"}},
    ShapeKey{"v", 1, kMaxExtent, {"vocab_size", "vocabulary", "n_vocab"}},
    ShapeKey{"s", 1, kMaxExtent, {"sequence_length", "n_positions", "n_ctx", "seq_length"}},
    ShapeKey{"i", 1, kMaxExtent, {"intermediate_size", "n_inner", "d_ff", "ffn"}},
    ShapeKey{"heads", 1, kMaxExtent, {"attention heads", "n_head", "num_attention_heads"}},
    ShapeKey{"kv", 1, kMaxExtent, {"key and value heads", "num_key_value_heads", "kv_heads"}},
    ShapeKey{"d", 1, kMaxExtent, {"head width", "head_dim", "d_kv"}},
    ShapeKey{"dl", 1, kMaxExtent, {"decoder layers", "num_decoder_layers"}},
    ShapeKey{"gated", 0, 1, {"gated MLP", "is_gated_act"}},
    ShapeKey{"head", 0, 1, {"own output matrix", "lm_head", "untied"}},
};

struct FamilyKeys {
  ShapeFamily family;
  std::vector<std::string_view> needed;
  std::vector<std::string_view> optional;
  std::string_view example;

  std::vector<std::string_view> All() const {
    std::vector<std::string_view> all = needed;
    all.insert(all.end(), optional.begin(), optional.end());
    return all;
  }
};

const std::array<FamilyKeys, 4>& AllFamilyKeys() {
  static const std::array<FamilyKeys, 4> kAll = {{
      {ShapeFamily::kGpt2,
       {"h", "l", "v", "s"},
       {"i", "heads", "head"},
       "gpt2:h=12288,l=96,v=50257,s=2048"},
      {ShapeFamily::kLlama,
       {"h", "l", "v", "i", "heads"},
       {"kv", "d", "s", "head"},
       "llama:h=4096,l=32,v=32000,i=11008,heads=32"},
      {ShapeFamily::kT5,
       {"h", "l", "v", "i", "heads"},
       {"d", "dl", "gated", "s", "head"},
       "t5:h=2048,l=24,v=32128,i=5120,heads=32"},
      {ShapeFamily::kBloom,
       {"h", "l", "v"},
       {"i", "heads", "s", "head"},
       "bloom:h=14336,l=70,v=250880"},
  }};
  return kAll;
}

const ShapeKey& KeyNamed(std::string_view name) {
  return *std::ranges::find(kShapeKeys, name, &ShapeKey::name);
}

using Values = std::map<std::string_view, uint64_t>;

/// The text, short enough for a line.
std::string_view Short(std::string_view text) { return text.substr(0, 100); }

template <typename... Args>
Error WrongShape(std::string_view text, fmt::format_string<Args...> format, Args&&... args) {
  return MakeError(ErrorCode::kInvalidArgument, "model shape \"{}\": {}", Short(text),
                   fmt::format(format, std::forward<Args>(args)...));
}

/// How far `written` is from what people write for `key`; a long part of it is near.
size_t DistanceTo(const ShapeKey& key, std::string_view written) {
  constexpr size_t kLongPart = 3;
  size_t least = EditDistance(written, key.name);
  for (const std::string_view meaning : key.meanings) {
    if (meaning.empty()) continue;
    const bool part = written.size() >= kLongPart && meaning.find(written) != meaning.npos;
    least = std::min(least, part ? size_t{1} : EditDistance(written, meaning));
  }
  return least;
}

/// "did you mean …? " or nothing. A suggestion leaves most of the letters as they are.
std::string KeyHint(const FamilyKeys& keys, std::string_view written) {
  const ShapeKey* nearest = nullptr;
  size_t best = std::min(written.size(), written.size() / 3 + 2);
  for (const std::string_view name : keys.All()) {
    const size_t distance = DistanceTo(KeyNamed(name), written);
    if (distance >= best) continue;
    best = distance;
    nearest = &KeyNamed(name);
  }
  if (nearest == nullptr) return "";
  return fmt::format("did you mean \"{}\" ({})? ", nearest->name, nearest->meanings.front());
}

Result<const FamilyKeys*> FindFamilyKeys(std::string_view text, std::string_view name) {
  const FamilyKeys* nearest = nullptr;
  size_t best = name.size() / 3 + 2;
  for (const FamilyKeys& keys : AllFamilyKeys()) {
    const size_t distance = EditDistance(name, ToString(keys.family));
    if (name == ToString(keys.family)) return &keys;
    if (distance >= best) continue;
    best = distance;
    nearest = &keys;
  }
  const std::string hint =
      nearest == nullptr ? "" : fmt::format("did you mean \"{}\"? ", ToString(nearest->family));
  return WrongShape(text, "unknown family \"{}\"; {}the families are gpt2, llama, t5 and bloom",
                    Short(name), hint);
}

Status ReadPair(std::string_view text, std::string_view pair, const FamilyKeys& keys,
                Values* values) {
  const size_t equals = pair.find('=');
  const std::string_view name = pair.substr(0, equals);
  const std::vector<std::string_view> all = keys.All();
  const auto known = std::ranges::find(all, name);
  if (known == all.end()) {
    return WrongShape(text, "{} has no key \"{}\"; {}its keys are {}", ToString(keys.family),
                      Short(name), KeyHint(keys, name), fmt::join(all, ", "));
  }
  if (equals == std::string_view::npos) {
    return WrongShape(text, "{} has no value; write {}=NUMBER", name, name);
  }
  const ShapeKey& key = KeyNamed(name);
  const Result<uint64_t> value =
      ParseWhole(std::string(pair.substr(equals + 1)), {.low = key.least, .high = key.most});
  if (!value.ok()) return WrongShape(text, "{}: {}", name, value.error().message);
  if (!values->emplace(*known, *value).second) {
    return WrongShape(text, "{} is there twice; leave one out", name);
  }
  return {};
}

Status CheckComplete(std::string_view text, const FamilyKeys& keys, const Values& values) {
  for (const std::string_view name : keys.needed) {
    if (values.contains(name)) continue;
    return WrongShape(text, "{} ({}) is missing; write it as in {}", name,
                      KeyNamed(name).meanings.front(), keys.example);
  }
  return {};
}

ModelShape Filled(const FamilyKeys& keys, const Values& values) {
  const auto get = [&](std::string_view name, uint64_t otherwise) {
    const auto found = values.find(name);
    return found == values.end() ? otherwise : found->second;
  };
  const bool t5 = keys.family == ShapeFamily::kT5;
  const bool llama = keys.family == ShapeFamily::kLlama;
  ModelShape shape{.family = keys.family, .width = get("h", 0), .layers = get("l", 0)};
  shape.decoder_layers = t5 ? get("dl", shape.layers) : 0;
  shape.vocabulary = get("v", 0);
  shape.sequence = get("s", kUsualSequence);
  shape.inner = get("i", 4 * shape.width);
  shape.heads = get("heads", 0);
  shape.kv_heads = get("kv", shape.heads);
  shape.head_width = get("d", shape.heads == 0 ? 0 : shape.width / shape.heads);
  shape.gated = llama || (t5 && get("gated", 1) == 1);
  shape.head = get("head", llama ? 1 : 0) == 1;
  return shape;
}

Status CheckHeads(std::string_view text, const ModelShape& shape, bool width_given) {
  if (shape.heads == 0) return {};
  const bool has_width_key =
      shape.family == ShapeFamily::kLlama || shape.family == ShapeFamily::kT5;
  if (!width_given && shape.width % shape.heads != 0) {
    return WrongShape(text, "heads={} does not divide h={}; choose heads that do{}", shape.heads,
                      shape.width, has_width_key ? ", or give d" : "");
  }
  if (shape.heads % shape.kv_heads != 0) {
    return WrongShape(text, "kv={} does not divide heads={}; choose kv that does", shape.kv_heads,
                      shape.heads);
  }
  return {};
}

}  // namespace

bool IsModelShape(std::string_view text) {
  const size_t colon = text.find(':');
  return colon != std::string_view::npos && colon > 0 &&
         text.substr(0, colon).find('/') == std::string_view::npos &&
         text.find('=', colon) != std::string_view::npos;
}

Result<ModelShape> ParseModelShape(const std::string& text) {
  const std::string_view all = text;
  const size_t colon = std::min(all.find(':'), all.size());
  PENSTOCK_ASSIGN(const FamilyKeys* const keys, FindFamilyKeys(all, all.substr(0, colon)));
  Values values;
  for (size_t begin = colon + 1; begin < all.size();) {
    const size_t end = std::min(all.find(',', begin), all.size());
    PENSTOCK_TRY(ReadPair(all, all.substr(begin, end - begin), *keys, &values));
    begin = end + 1;
  }
  PENSTOCK_TRY(CheckComplete(all, *keys, values));
  const ModelShape shape = Filled(*keys, values);
  PENSTOCK_TRY(CheckHeads(all, shape, values.contains("d")));
  if (CountParameters(shape).total() == kMaxCount) {
    return WrongShape(all, "it has more parameters than 64 bits count; make h, l, v or i smaller");
  }
  return shape;
}

}  // namespace penstock::train
