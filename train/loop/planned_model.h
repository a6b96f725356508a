// The model of a plan: files as train reads them, or a name with shape.
//
// Threads: any.
#pragma once

#include <memory>
#include <string>

#include "base/result.h"
#include "train/models/model.h"

namespace penstock::train {

struct PlannedModel {
  std::string name;  ///< for messages
  std::shared_ptr<const ModelDescription> description;
  bool stands_in = false;  ///< its activations are those of another family
};

/// Errors: of ParseModelShape for a name with shape, else of ReadModel.
Result<PlannedModel> ReadPlannedModel(const std::string& model);

}  // namespace penstock::train
