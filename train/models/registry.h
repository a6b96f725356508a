// The families of models, by model_type.
//
// Threads: any.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>

#include "base/result.h"
#include "train/models/family.h"

namespace penstock::train {

using ModelFamilies = std::span<const ModelFamily* const>;

/// Returns the families of this program, at least one.
ModelFamilies AllModelFamilies();

/// A config that was read.
struct ParsedModel {
  const ModelFamily* family = nullptr;
  DescribedModel described;
};

/// Reads the text of a config.json; `name` is its path in messages. Errors: kInvalidArgument for
/// broken JSON, and for a model_type that none of `families` has (the message lists theirs); those
/// of ModelFamily::Read.
Result<ParsedModel> ParseModel(const std::string& text, const std::string& name,
                               ModelFamilies families = AllModelFamilies());

/// Returns the family to which files with such tensor names belong, as far as the names show: the
/// one whose embedding is among them, else the one whose prefix is, else the first.
const ModelFamily& GuessFamily(std::span<const std::string_view> tensors,
                               ModelFamilies families = AllModelFamilies());

}  // namespace penstock::train
