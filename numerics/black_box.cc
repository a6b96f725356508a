#include "numerics/black_box.h"

#include <nlohmann/json.hpp>

#include "numerics/thresholds.h"

namespace penstock::train {
namespace {

using BoxJson = nlohmann::ordered_json;

/// A list over tensors or layers: one figure of each.
template <typename Numbers, typename Figure>
BoxJson ListOf(const std::vector<Numbers>& numbers, Figure figure) {
  BoxJson list = BoxJson::array();
  for (const Numbers& of : numbers) list.push_back(figure(of));
  return list;
}

BoxJson MaybeNumber(const std::optional<double>& value) {
  return value ? BoxJson(*value) : BoxJson();
}

BoxJson TensorsJson(const RunFacts& facts) {
  return ListOf(facts.tensors, [](const WatchedTensor& tensor) {
    return BoxJson{{"name", tensor.name},
                   {"layer", tensor.layer ? BoxJson(*tensor.layer) : BoxJson()}};
  });
}

BoxJson LayersJson(const RunFacts& facts) {
  return ListOf(facts.layers, [](const WatchedLayer& layer) {
    return BoxJson{
        {"attention", layer.attention}, {"mlp", layer.mlp}, {"residual", layer.residual}};
  });
}

void AddUpdate(const std::optional<UpdateNumbers>& update, BoxJson& json) {
  if (!update) {
    for (const char* key : {"weight_max", "weight_rms", "update_rms"}) json[key] = nullptr;
    return;
  }
  const auto list = [&](auto figure) { return ListOf(update->weights, figure); };
  json["weight_max"] = list([](const WeightNumbers& weight) { return weight.largest; });
  json["weight_rms"] = list([](const WeightNumbers& weight) { return weight.rms; });
  json["update_rms"] = list([](const WeightNumbers& weight) { return weight.update_rms; });
}

BoxJson StepJson(const StepNumbers& step, const std::optional<UpdateNumbers>& update) {
  const auto gradients = [&](auto figure) { return ListOf(step.gradients, figure); };
  const auto layers = [&](auto figure) { return ListOf(step.layers, figure); };
  BoxJson json = {
      {"step", step.step},
      {"loss", step.loss},
      {"forward_finite", step.forward_finite},
      {"grad_norm", step.grad_norm},
      {"lr", step.lr},
      {"loss_scale", step.loss_scale},
      {"skipped", step.skipped},
      {"rows", step.rows},
      {"gradient_nonfinite", gradients([](const GradientNumbers& of) { return of.nonfinite; })},
      {"gradient_max", gradients([](const GradientNumbers& of) { return of.largest; })},
      {"gradient_rms", gradients([](const GradientNumbers& of) { return of.rms; })},
  };
  AddUpdate(update, json);
  json["attention_max"] = layers([](const LayerNumbers& of) { return MaybeNumber(of.attention); });
  json["mlp_max"] = layers([](const LayerNumbers& of) { return MaybeNumber(of.mlp); });
  json["residual_max"] = layers([](const LayerNumbers& of) { return MaybeNumber(of.residual); });
  return json;
}

}  // namespace

void BlackBox::Add(const StepNumbers& numbers) {
  steps_.push_back({.step = numbers});
  if (steps_.size() > kBlackBoxSteps) steps_.pop_front();
}

void BlackBox::Add(const UpdateNumbers& numbers) {
  for (Kept& kept : steps_) {
    if (kept.step.step == numbers.step) kept.update = numbers;
  }
}

std::string BlackBox::ToJson(const RunFacts& facts, const StopInfo& stop) const {
  BoxJson json = {
      {"format", 1},
      {"step", stop.step},
      {"stop", stop.line},
      {"first_cause",
       stop.first_cause ? BoxJson::parse(train::ToJson(*stop.first_cause)) : BoxJson()},
      {"advice", stop.advice},
      {"dtype", ToString(facts.dtype)},
      {"loss_scale_window",
       facts.dynamic_loss_scale ? BoxJson(facts.loss_scale_window) : BoxJson()},
      {"tensors", TensorsJson(facts)},
      {"layers", LayersJson(facts)},
      {"steps", ListOf(std::vector<Kept>(steps_.begin(), steps_.end()),
                       [](const Kept& kept) { return StepJson(kept.step, kept.update); })},
  };
  return json.dump(-1, ' ', /*ensure_ascii=*/false, BoxJson::error_handler_t::replace) + "\n";
}

}  // namespace penstock::train
