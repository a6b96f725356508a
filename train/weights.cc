#include "train/weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <utility>

#include "train/safetensors.h"

namespace penstock::train {
namespace {

constexpr std::string_view kPrefix = "transformer.";
constexpr char kEmbedding[] = "wte.weight";
constexpr char kTiedHead[] = "lm_head.weight";
constexpr size_t kNamesInNotice = 8;

/// Where a tensor is: a file, and its name there.
struct Place {
  const SafetensorsReader* file = nullptr;
  const std::string* name = nullptr;
  const SafetensorsEntry* entry = nullptr;
};

std::string_view WithoutPrefix(std::string_view name) {
  return name.starts_with(kPrefix) ? name.substr(kPrefix.size()) : name;
}

/// "h.N.attn.bias" and "h.N.attn.masked_bias": constants of attention, not weights.
bool IsMask(std::string_view name) {
  if (!name.starts_with("h.")) return false;
  name.remove_prefix(2);
  const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
  const std::string_view rest = name.substr(digits);
  return digits > 0 && (rest == ".attn.bias" || rest == ".attn.masked_bias");
}

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// Every tensor of the files by its name without prefix, and which of them a model has asked for.
class Catalog {
 public:
  explicit Catalog(std::vector<SafetensorsReader> files) : files_(std::move(files)) {}
  Status Build();
  /// The tensor of the model, with its shape and dtype checked.
  Result<Place> Find(const zero::TensorSpec& tensor);
  std::vector<std::string> Unused() const;

 private:
  std::string FileNames() const;

  std::vector<SafetensorsReader> files_;
  std::map<std::string, Place, std::less<>> places_;
  std::set<std::string, std::less<>> used_;
};

Status Catalog::Build() {
  for (const SafetensorsReader& file : files_) {
    for (const auto& [name, entry] : file.entries()) {
      const std::string plain(WithoutPrefix(name));
      const auto [at, inserted] = places_.emplace(plain, Place{&file, &name, &entry});
      if (inserted) continue;
      return MakeError(ErrorCode::kInvalidArgument,
                       "tensor {} is in {} as {} and in {} as {}; keep one of them", plain,
                       at->second.file->path(), *at->second.name, file.path(), name);
    }
  }
  return {};
}

Result<Place> Catalog::Find(const zero::TensorSpec& tensor) {
  auto found = places_.find(tensor.name);
  if (found == places_.end() && tensor.name == kEmbedding) found = places_.find(kTiedHead);
  if (found == places_.end()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} of shape {} is missing in {}; the files do not belong to this "
                     "config.json or are incomplete",
                     tensor.name, ShapeText(tensor.shape), FileNames());
  }
  const Place& place = found->second;
  if (place.entry->shape != tensor.shape) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} of {} has shape {}, and by config.json it has shape {}",
                     *place.name, place.file->path(), ShapeText(place.entry->shape),
                     ShapeText(tensor.shape));
  }
  if (!place.entry->dtype) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} of {} is stored as {}; only F32, BF16 and F16 are read",
                     *place.name, place.file->path(), place.entry->stored);
  }
  used_.insert(found->first);
  return place;
}

std::vector<std::string> Catalog::Unused() const {
  std::vector<std::string> names;
  for (const auto& [plain, place] : places_) {
    if (plain != kTiedHead && !IsMask(plain) && !used_.contains(plain)) {
      names.push_back(*place.name);
    }
  }
  return names;
}

std::string Catalog::FileNames() const {
  if (files_.size() == 1) return files_.front().path();
  return fmt::format("{} and {} more files", files_.front().path(), files_.size() - 1);
}

/// What the source keeps: the open files, and where each tensor of each module is.
struct OpenModel {
  explicit OpenModel(std::vector<SafetensorsReader> files) : catalog(std::move(files)) {}

  Status Read(zero::ModuleId module, size_t tensor, uint64_t begin, std::span<float> values) const {
    const Place& place = places[offload::Index(module)][tensor];
    PENSTOCK_TRY(place.file->Read(*place.name, begin, values));
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](float value) { return !std::isfinite(value); });
    if (bad == values.end()) return {};
    return MakeError(ErrorCode::kInvalidArgument,
                     "element {} of tensor {} of {} is {}; training needs finite weights",
                     begin + static_cast<uint64_t>(bad - values.begin()), *place.name,
                     place.file->path(), *bad);
  }

  Catalog catalog;
  std::vector<std::vector<Place>> places;  ///< [module][tensor]
};

}  // namespace

Result<WeightFiles> OpenWeights(const std::vector<std::string>& files,
                                const zero::ModelSpec& model) {
  PENSTOCK_CHECK(!files.empty());
  std::vector<SafetensorsReader> readers;
  for (const std::string& path : files) {
    PENSTOCK_ASSIGN(SafetensorsReader reader, SafetensorsReader::Open(path));
    readers.push_back(std::move(reader));
  }
  const auto open = std::make_shared<OpenModel>(std::move(readers));
  PENSTOCK_TRY(open->catalog.Build());
  for (const zero::ModuleSpec& module : model.modules) {
    std::vector<Place>& places = open->places.emplace_back();
    for (const zero::TensorSpec& tensor : module.tensors) {
      PENSTOCK_ASSIGN(const Place place, open->catalog.Find(tensor));
      places.push_back(place);
    }
  }
  WeightFiles weights;
  std::vector<std::string> unused = open->catalog.Unused();
  if (!unused.empty()) {
    const size_t count = unused.size();
    unused.resize(std::min(count, kNamesInNotice));
    weights.notices.push_back(
        fmt::format("{} of the tensors beside the model are not part of it "
                    "and are left out: {}{}",
                    count, fmt::join(unused, ", "), count > unused.size() ? ", …" : ""));
  }
  weights.source = [open](zero::ModuleId module, size_t tensor, uint64_t begin,
                          std::span<float> values) {
    return open->Read(module, tensor, begin, values);
  };
  return weights;
}

}  // namespace penstock::train
