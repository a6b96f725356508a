// What is wrong with a command line that CLI11 refuses, in our words.
//
// Threads: any.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace penstock::train {

/// Returns the mistake of the line that `app` was parsing when it threw `error`.
std::string MistakeIn(const CLI::App& app, const CLI::ParseError& error);

}  // namespace penstock::train
