// GPT-2 as one of the families of models/registry.h.
#pragma once

#include <memory>

#include "train/models/family.h"
#include "train/models/gpt2_config.h"

namespace penstock::train {

/// Returns the family of model_type "gpt2".
const ModelFamily& Gpt2Family();

/// Returns the description of one GPT-2.
std::shared_ptr<const ModelDescription> DescribeGpt2(const Gpt2Config& config);

}  // namespace penstock::train
