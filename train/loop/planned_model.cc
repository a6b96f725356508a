#include "train/loop/planned_model.h"

#include <utility>

#include "train/plan/shaped_model.h"
#include "train/sizing/model_shape.h"
#include "train/weights/model_config.h"

namespace penstock::train {

Result<PlannedModel> ReadPlannedModel(const std::string& model) {
  if (IsModelShape(model)) {
    PENSTOCK_ASSIGN(const ModelShape shape, ParseModelShape(model));
    PENSTOCK_ASSIGN(std::shared_ptr<const ModelDescription> description, MakeShapedModel(shape));
    return PlannedModel{.name = model,
                        .description = std::move(description),
                        .stands_in = shape.family != ShapeFamily::kGpt2};
  }
  PENSTOCK_ASSIGN(ModelSource source, ReadModel(model, WeightsBeside::kIgnore));
  return PlannedModel{.name = source.config_path, .description = std::move(source.description)};
}

}  // namespace penstock::train
