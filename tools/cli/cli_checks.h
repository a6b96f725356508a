// What an argument of the command line may be.
//
// CLI11 only splits the line; what an argument may be is decided here, by one function for each
// kind of argument, so that the same text means the same wherever it stands.
//
// Threads: any.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "base/units.h"

namespace penstock::train {

/// Refuses what ParseBytes does not read.
CLI::Validator SizeCheck();

/// Refuses what ParseWhole does not read.
CLI::Validator WholeCheck(WholeRange range = {});

/// Which numbers an argument may be.
struct RealRange {
  double low = 0;
  double high = std::numeric_limits<double>::max();
  bool below = false;  ///< `high` itself is too much
};

/// Reads a decimal number like 5e-5. Errors: kInvalidArgument for everything else and for numbers
/// out of range.
Result<double> ParseReal(const std::string& text, RealRange range = {});

/// Refuses what ParseReal does not read.
CLI::Validator RealCheck(RealRange range = {});

/// Return what a text says that SizeCheck or WholeCheck has let through; nothing if it is empty.
std::optional<Bytes> SizeOrNone(const std::string& text);
std::optional<uint64_t> NumberOrNone(const std::string& text);

/// Refuses what is none of these words.
CLI::Validator OneOf(std::vector<std::string> words);

/// Refuses a path or a name that is empty, as the value of a shell variable that is not set is.
CLI::Validator NameCheck();

}  // namespace penstock::train
