// The flags of `train`, and of tools that read the same configuration, that give "auto" its value,
// named as in transformers' TrainingArguments.
//
// Threads: the main thread.
#pragma once

#include <CLI/CLI.hpp>

#include "config/auto.h"

namespace penstock::train {

/// The group of these flags among the options of a command.
inline constexpr const char* kAutoGroup = "Values where the config says \"auto\"";

/// Adds the flags to `command`, in kAutoGroup. `flags` must outlive it.
void AddAutoFlags(CLI::App& command, config::AutoFlags* flags);

}  // namespace penstock::train
