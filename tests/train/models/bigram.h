// A second family of models, for tests: a token's row of a table, and a linear head of its own. It
// is no transformer and takes no operators: fp32 loops on the CPU device's stream.
#pragma once

#include "train/models/family.h"

namespace penstock::train {

/// Returns the family of model_type "bigram", with the keys "vocab_size", "width" and "context".
const ModelFamily& BigramFamily();

}  // namespace penstock::train
