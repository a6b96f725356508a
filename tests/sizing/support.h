// Shapes for the tests of sizing.
#pragma once

#include <fmt/format.h>

#include "sizing/model_shape.h"

namespace penstock::train {

/// The words of the tokenizer of the topology table's models.
inline constexpr uint64_t kWords = 250880;

/// A GPT-2 with sequences of 2048 tokens.
inline ModelShape Gpt(uint64_t h, uint64_t l, uint64_t v = kWords) {
  return ParseModelShape(fmt::format("gpt2:h={},l={},v={},s=2048", h, l, v)).value();
}

}  // namespace penstock::train
