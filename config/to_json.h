// The configuration as understood, in the format in which it is read.
#pragma once

#include <string>

#include "config/config.h"

namespace penstock::config {

/// Returns every key with its value, as a JSON object (for summary.json). ParseConfig of it, with
/// the same world size, gives the same Config; only the lists of superseded and automatic keys,
/// which describe the text, are then empty.
std::string ConfigToJson(const Config& config);

}  // namespace penstock::config
