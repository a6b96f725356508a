// The model of a plan: files as train reads them, or a name with shape.
//
// Threads: any.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/result.h"
#include "sizing/model_shape.h"
#include "train/models/model.h"

namespace penstock::train {

struct PlannedModel {
  std::string name;  ///< for messages
  std::shared_ptr<const ModelDescription> description;
  std::optional<ModelShape> shape = {};  ///< of a family that names with shape have
  bool stands_in = false;                ///< its activations are those of another family
};

/// What DeepSpeed's estimator needs of a model.
struct CountedModel {
  uint64_t parameters = 0;
  uint64_t largest_module = 0;  ///< as LargestModule has it
};
/// Errors: as of ReadPlannedModel.
Result<CountedModel> CountModel(const std::string& model);

/// Errors: of ParseModelShape for a name with shape, else of ReadModel.
Result<PlannedModel> ReadPlannedModel(const std::string& model);

}  // namespace penstock::train
