// The JSON text in a state file's head: the model's groups, modules and tensors
// (docs/state_format.md; private to state_format.cc). Decoding validates everything.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/result.h"
#include "offload/layout.h"

namespace penstock::offload {

/// kCorruption.
Error Corrupt(const std::string& what);

/// `version`: of the format. Version 1 has no groups in the text.
std::string ModelToJson(const ModelLayout& model, uint32_t version);
/// Reads the model of a text. `parameters` is the number in the head, which has `version`. The
/// groups of version 1 have `v1_planes`, which later versions do not need. Checks that the tensors
/// have that many elements, distinct names, and the places that a writer gives them. Errors:
/// kCorruption.
Result<ModelLayout> ModelFromJson(const std::string& text, uint32_t version,
                                  const std::optional<Planes>& v1_planes, uint64_t parameters);

}  // namespace penstock::offload
