#include "tools/compared_model.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <utility>

#include "base/check.h"
#include "offload/whole_commit.h"
#include "run/leftovers.h"
#include "run/run_folder.h"
#include "train/weights/committed_model.h"
#include "train/weights/tensor_catalog.h"

namespace penstock::train {
namespace {

namespace fs = std::filesystem;

/// The last commit of a run.
class CommittedModel final : public ComparedModel {
 public:
  CommittedModel(RunInfo info, std::unique_ptr<zero::CommittedState> state)
      : info_(std::move(info)), state_(std::move(state)) {
    const offload::ModelLayout& layout = state_->model();
    for (const offload::GroupLayout& group : layout.groups) AddStatesOf(group);
    for (size_t module = 0; module < layout.modules.size(); ++module) {
      for (const size_t tensor : layout.modules[module].TensorsByOffset()) {
        const offload::TensorLayout& place = layout.modules[module].tensors[tensor];
        tensors_.push_back({.name = place.name,
                            .shape = place.shape,
                            .elements = place.elements,
                            .group = layout.group(place.group).name,
                            .lacks = MissingIn(layout.group(place.group)),
                            .moments = MomentsOf(layout.group(place.group))});
        places_.emplace_back(static_cast<zero::ModuleId>(module), tensor);
      }
    }
  }

  const zero::TrainState* train_state() const override { return &state_->train_state(); }

  uint64_t ReadableAtOnce(size_t index, uint64_t begin) const override {
    const auto [module, tensor] = places_[index];
    return state_->ReadableAtOnce(module, tensor, begin);
  }

  Status Read(zero::StateKind kind, size_t index, uint64_t begin,
              std::span<float> values) override {
    const auto [module, tensor] = places_[index];
    return state_->ReadState(kind, module, tensor, begin, values);
  }

  Result<std::string> UseWholeCommit() override {
    if (state_->commits().size() < 2) return std::string();
    PENSTOCK_ASSIGN(std::string left, offload::UseWholeCommit(*state_));
    PENSTOCK_TRY(CheckInfo(info_, *state_));
    return left;
  }

 private:
  /// A run's groups keep the same moments, or none.
  void AddStatesOf(const offload::GroupLayout& group) {
    std::vector<zero::StateKind> kept = zero::StatesOf(group);
    if (kept.size() > states_.size()) states_ = std::move(kept);
  }

  static std::optional<Encoding> MomentsOf(const offload::GroupLayout& group) {
    for (const offload::PlaneRole role :
         {offload::PlaneRole::kExpAvg, offload::PlaneRole::kExpAvgSq}) {
      const offload::Plane* const moments = group.planes.Find(role);
      if (moments != nullptr) return moments->encoding;
    }
    return std::nullopt;
  }

  std::vector<zero::StateKind> MissingIn(const offload::GroupLayout& group) const {
    std::vector<zero::StateKind> missing;
    std::ranges::set_difference(states_, zero::StatesOf(group), std::back_inserter(missing));
    return missing;
  }

  const RunInfo info_;
  std::unique_ptr<zero::CommittedState> state_;
  std::vector<std::pair<zero::ModuleId, size_t>> places_;  ///< module, index in it
};

/// The tensors of safetensors files.
class StoredModel final : public ComparedModel {
 public:
  explicit StoredModel(TensorCatalog catalog) : catalog_(std::move(catalog)) {}

  Status List() {
    for (const auto& [name, place] : catalog_.places()) {
      if (!place.entry->dtype) {
        return MakeError(ErrorCode::kInvalidArgument,
                         "tensor {} of {} is stored as {}; only F32, BF16 and F16 are compared",
                         *place.name, place.file->path(), place.entry->stored);
      }
      places_.push_back(&place);
      tensors_.push_back({.name = name,
                          .shape = place.entry->shape,
                          .elements = place.entry->elements,
                          .dtype = *place.entry->dtype,
                          .group = {},
                          .copy = name == catalog_.names().head});
    }
    return {};
  }

  const zero::TrainState* train_state() const override { return nullptr; }

  uint64_t ReadableAtOnce(size_t index, uint64_t begin) const override {
    return tensors_[index].elements - begin;
  }

  Status Read(zero::StateKind kind, size_t index, uint64_t begin,
              std::span<float> values) override {
    PENSTOCK_CHECK(kind == zero::StateKind::kMaster);
    return places_[index]->Read(begin, values);
  }

  Result<std::string> UseWholeCommit() override { return std::string(); }

 private:
  TensorCatalog catalog_;
  std::vector<const TensorCatalog::Place*> places_;
};

Result<SafetensorsSet> FilesOf(const std::string& path) {
  std::error_code error;
  if (!fs::is_directory(path, error)) return SafetensorsSet{.files = {path}, .indices = {}};
  PENSTOCK_ASSIGN(SafetensorsSet set, FindSafetensors(path));
  if (!set.files.empty()) return set;
  return MakeError(ErrorCode::kNotFound,
                   "{} holds neither a run (run.json) nor a model (*.safetensors)", path);
}

}  // namespace

Result<std::unique_ptr<ComparedModel>> ComparedModel::Open(const std::string& path) {
  std::error_code error;
  if (fs::exists(fs::path(path) / "run.json", error)) {
    PENSTOCK_ASSIGN(RunInfo info, ReadCommittedInfo(path));
    PENSTOCK_ASSIGN(auto state, OpenCommit(info, path));
    return std::unique_ptr<ComparedModel>(
        std::make_unique<CommittedModel>(std::move(info), std::move(state)));
  }
  PENSTOCK_ASSIGN(const SafetensorsSet set, FilesOf(path));
  PENSTOCK_ASSIGN(TensorCatalog catalog, TensorCatalog::Open(set));
  auto model = std::make_unique<StoredModel>(std::move(catalog));
  PENSTOCK_TRY(model->List());
  return std::unique_ptr<ComparedModel>(std::move(model));
}

}  // namespace penstock::train
