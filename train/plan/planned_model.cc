#include "train/plan/planned_model.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "sizing/model_shape.h"
#include "train/plan/shaped_model.h"
#include "train/weights/model_config.h"

namespace penstock::train {

namespace {

/// Of a GPT-2, whose identity has its sizes.
std::optional<ModelShape> ShapeOf(const ModelFamily& family, const ModelDescription& model) {
  if (family.model_type() != "gpt2") return {};
  const nlohmann::json sizes = nlohmann::json::parse(model.Identity());
  const uint64_t width = sizes.at("n_embd");
  const uint64_t heads = sizes.at("n_head");
  return ModelShape{.family = ShapeFamily::kGpt2,
                    .width = width,
                    .layers = sizes.at("n_layer"),
                    .vocabulary = sizes.at("vocab_size"),
                    .sequence = sizes.at("n_positions"),
                    .inner = sizes.at("n_inner"),
                    .heads = heads,
                    .kv_heads = heads,
                    .head_width = width / heads};
}

}  // namespace

Result<PlannedModel> ReadPlannedModel(const std::string& model) {
  if (IsModelShape(model)) {
    PENSTOCK_ASSIGN(const ModelShape shape, ParseModelShape(model));
    PENSTOCK_ASSIGN(std::shared_ptr<const ModelDescription> description, MakeShapedModel(shape));
    return PlannedModel{.name = model,
                        .description = std::move(description),
                        .shape = shape,
                        .stands_in = !IsTrained(shape)};
  }
  PENSTOCK_ASSIGN(ModelSource source, ReadModel(model, WeightsBeside::kIgnore));
  return PlannedModel{.name = source.config_path,
                      .description = source.description,
                      .shape = ShapeOf(*source.family, *source.description)};
}

Result<CountedModel> CountModel(const std::string& model) {
  if (IsModelShape(model)) {
    PENSTOCK_ASSIGN(const ModelShape shape, ParseModelShape(model));
    return CountedModel{.parameters = CountParameters(shape).total(),
                        .largest_module = LargestModule(shape)};
  }
  PENSTOCK_ASSIGN(const PlannedModel planned, ReadPlannedModel(model));
  const zero::ModelSpec spec = planned.description->Spec();
  CountedModel counted;
  std::vector<NamedElements> tensors;
  for (const zero::ModuleSpec& module : spec.modules) {
    for (const zero::TensorSpec& tensor : module.tensors) {
      counted.parameters += tensor.elements();
      tensors.push_back({.name = tensor.name, .elements = tensor.elements()});
    }
  }
  counted.largest_module = LargestModule(tensors);
  return counted;
}

}  // namespace penstock::train
