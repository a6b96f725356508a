// A model that is known by its shape alone, for plans: also of families that are not trained yet.
//
// Sizes and parameters are the family's. Activations and operators are those of a GPT-2 of the same
// width, depth, MLP and vocabulary, which the plan says. Threads: any.
#pragma once

#include <memory>

#include "base/result.h"
#include "sizing/model_shape.h"
#include "train/models/model.h"

namespace penstock::train {

/// Whether train knows the model: a GPT-2, whose output matrix is its embedding.
bool IsTrained(const ModelShape& shape);

/// Returns the model; of one that is trained, that. Heads that are not given are 64 wide where
/// that divides the width. Errors: kInvalidArgument for a shape that no plan can be made of.
Result<std::shared_ptr<const ModelDescription>> MakeShapedModel(const ModelShape& shape);

}  // namespace penstock::train
