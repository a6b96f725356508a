#include "train/weights/weights.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <utility>

#include "train/weights/tensor_catalog.h"

namespace penstock::train {
namespace {

using Place = TensorCatalog::Place;

constexpr size_t kNamesInNotice = 8;

std::string ShapeText(const std::vector<uint64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ", "));
}

/// The tensor of the model, with its shape and dtype checked.
Result<Place> Find(const TensorCatalog& catalog, const zero::TensorSpec& tensor) {
  const auto found = catalog.places().find(tensor.name);
  if (found == catalog.places().end()) {
    return MakeError(ErrorCode::kInvalidArgument,
                     "tensor {} of shape {} is missing in {}; the files do not belong to this "
                     "config.json or are incomplete",
                     tensor.name, ShapeText(tensor.shape), catalog.FileNames());
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
  return place;
}

/// Names in the files of tensors that are not part of the model. The tied output layer is the
/// embedding.
std::vector<std::string> Unused(const TensorCatalog& catalog, const zero::ModelSpec& model) {
  std::set<std::string, std::less<>> used = {std::string(catalog.names().head)};
  for (const zero::ModuleSpec& module : model.modules) {
    for (const zero::TensorSpec& tensor : module.tensors) used.insert(tensor.name);
  }
  std::vector<std::string> names;
  for (const auto& [plain, place] : catalog.places()) {
    if (!used.contains(plain)) names.push_back(*place.name);
  }
  return names;
}

/// The contents of the source: the open files, and where each tensor of each module is.
struct OpenModel {
  explicit OpenModel(TensorCatalog opened) : catalog(std::move(opened)) {}

  Status Read(zero::ModuleId module, size_t tensor, uint64_t begin, std::span<float> values) const {
    const Place& place = places[offload::Index(module)][tensor];
    PENSTOCK_TRY(place.Read(begin, values));
    const auto bad = std::find_if(values.begin(), values.end(),
                                  [](float value) { return !std::isfinite(value); });
    if (bad == values.end()) return {};
    return MakeError(ErrorCode::kInvalidArgument,
                     "element {} of tensor {} of {} is {}; training needs finite weights",
                     begin + static_cast<uint64_t>(bad - values.begin()), *place.name,
                     place.file->path(), *bad);
  }

  TensorCatalog catalog;
  std::vector<std::vector<Place>> places;  ///< [module][tensor]
};

}  // namespace

Result<WeightFiles> OpenWeights(const SafetensorsSet& set, const zero::ModelSpec& model,
                                const TensorNames& names) {
  PENSTOCK_ASSIGN(TensorCatalog catalog, TensorCatalog::Open(set, names));
  const auto open = std::make_shared<OpenModel>(std::move(catalog));
  for (const zero::ModuleSpec& module : model.modules) {
    std::vector<Place>& places = open->places.emplace_back();
    for (const zero::TensorSpec& tensor : module.tensors) {
      PENSTOCK_ASSIGN(const Place place, Find(open->catalog, tensor));
      places.push_back(place);
    }
  }
  WeightFiles weights;
  std::vector<std::string> unused = Unused(open->catalog, model);
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
