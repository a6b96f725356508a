#include "train/plan/shaped_model.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "train/models/registry.h"

namespace penstock::train {
namespace {

constexpr uint64_t kUsualHeadWidth = 64;

uint64_t HeadsOf(const ModelShape& shape) {
  if (shape.heads > 0 && shape.width % shape.heads == 0) return shape.heads;
  return shape.width % kUsualHeadWidth == 0 ? shape.width / kUsualHeadWidth : 1;
}

/// Of GPT-2 it is the model; of others it stands in for what they compute with.
Result<std::shared_ptr<const ModelDescription>> Gpt2Of(const ModelShape& shape) {
  const nlohmann::json config = {{"model_type", "gpt2"},
                                 {"n_embd", shape.width},
                                 {"n_layer", shape.layers + shape.decoder_layers},
                                 {"n_head", HeadsOf(shape)},
                                 {"n_inner", shape.gated ? 2 * shape.inner : shape.inner},
                                 {"n_positions", shape.sequence},
                                 {"vocab_size", shape.vocabulary}};
  PENSTOCK_ASSIGN(ParsedModel parsed, ParseModel(config.dump(), "of the shape"));
  return std::move(parsed.described.model);
}

/// One tensor stands for those of a module.
zero::ModuleSpec ModuleOf(const std::string& name, uint64_t parameters, bool repeated) {
  return {.name = name, .tensors = {{name + ".weights", {parameters}}}, .repeated = repeated};
}

zero::ModelSpec SpecOf(const ModelShape& shape) {
  const ParameterKinds kinds = CountParameters(shape);
  const uint64_t layers = shape.layers + shape.decoder_layers;
  zero::ModelSpec spec;
  spec.modules.push_back(ModuleOf("embedding", kinds.embedding, false));
  const uint64_t of_layers = kinds.attention + kinds.mlp;
  for (uint64_t i = 0; i < layers; ++i) {
    // The layers of an encoder and a decoder differ; their sum counts.
    const uint64_t share = of_layers / layers + (i < of_layers % layers ? 1 : 0);
    spec.modules.push_back(ModuleOf(fmt::format("layer.{}", i), share, true));
  }
  spec.modules.push_back(ModuleOf("norms", kinds.norms + kinds.positions, false));
  if (kinds.head > 0) spec.modules.push_back(ModuleOf("head", kinds.head, false));
  const zero::ModuleId embedding{0};
  const zero::ModuleId head{static_cast<uint32_t>(kinds.head > 0 ? layers + 2 : 0)};
  const zero::ModuleId norms{static_cast<uint32_t>(layers + 1)};
  const auto layer = [](uint64_t i) { return zero::ModuleId{static_cast<uint32_t>(i + 1)}; };
  spec.step = {{embedding, false}};
  for (uint64_t i = 0; i < layers; ++i) spec.step.push_back({layer(i), false});
  spec.step.push_back({norms, false});
  spec.step.push_back({head, true});
  for (uint64_t i = layers; i-- > 0;) spec.step.push_back({layer(i), true});
  if (head != embedding) spec.gradients.push_back(head);
  spec.gradients.push_back(norms);
  for (uint64_t i = layers; i-- > 0;) spec.gradients.push_back(layer(i));
  spec.gradients.push_back(embedding);
  return spec;
}

class ShapedModel final : public ModelDescription {
 public:
  ShapedModel(const ModelShape& shape, std::shared_ptr<const ModelDescription> stand_in)
      : shape_(shape), stand_in_(std::move(stand_in)) {}

  ModelSizes sizes() const override { return stand_in_->sizes(); }
  zero::ModelSpec Spec() const override { return SpecOf(shape_); }
  ActivationBytes Activations(const BatchShape& shape, kernels::DType dtype) const override {
    return stand_in_->Activations(shape, dtype);
  }
  kernels::OperatorOptions Operators(const BatchShape& shape, kernels::DType dtype,
                                     int threads) const override {
    return stand_in_->Operators(shape, dtype, threads);
  }
  zero::TensorSource Initialization(uint64_t seed) const override {
    return stand_in_->Initialization(seed);
  }
  Result<std::unique_ptr<Model>> Create(const BatchShape&, kernels::DType, device::Device&,
                                        kernels::ModelOperators&) const override {
    return MakeError(ErrorCode::kInvalidArgument, "a model of this shape is not trained yet");
  }
  std::string Identity() const override { return "{}"; }

 private:
  const ModelShape shape_;
  const std::shared_ptr<const ModelDescription> stand_in_;
};

}  // namespace

bool IsTrained(const ModelShape& shape) {
  return shape.family == ShapeFamily::kGpt2 && !shape.head;
}

Result<std::shared_ptr<const ModelDescription>> MakeShapedModel(const ModelShape& shape) {
  PENSTOCK_ASSIGN(std::shared_ptr<const ModelDescription> gpt2, Gpt2Of(shape));
  if (IsTrained(shape)) return gpt2;
  return std::shared_ptr<const ModelDescription>(
      std::make_shared<ShapedModel>(shape, std::move(gpt2)));
}

}  // namespace penstock::train
