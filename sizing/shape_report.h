// What a model's shape comes to, as text and as JSON.
//
// Pure functions. Threads: any.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "sizing/model_shape.h"

namespace penstock::train {

/// Returns the parameters by kind, the largest module and the ratio of width to depth. Ends with a
/// line break.
std::string ShapeText(const ModelShape& shape);
/// Returns {"family", "parameters", "parameters_by_kind": {"embedding", "positions", "attention",
/// "mlp", "norms", "head"}, "largest_module", "width_to_depth"}.
nlohmann::json ShapeJson(const ModelShape& shape);

/// Returns "embedding 98304 + positions 196608 + …", without kinds that the model does not have.
std::string KindsText(const ParameterKinds& kinds);
/// Returns {"embedding", "positions", "attention", "mlp", "norms", "head"}.
nlohmann::json KindsJson(const ParameterKinds& kinds);

}  // namespace penstock::train
