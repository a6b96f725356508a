// A report: a finding about the numbers of a step, as a line for people and as a line of
// RUN/numerics.jsonl (docs/numerics.md).
//
// Threads: any.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "numerics/step_numbers.h"

namespace penstock::train {

enum class ReportKind {
  kNonFinite,
  kHeadroom,
  kStreak,
  kLossSpike,
  kNormSpike,
  kUpdate,
  kUnderflow,
  kOverflows,
};

/// What a report asks for. The file does not have it.
enum class Severity {
  kInfo,     ///< nothing
  kWarning,  ///< a look
  kStop,     ///< the end of the run
};

/// Field names are those of the file.
struct Report {
  uint64_t step = 0;
  ReportKind kind = ReportKind::kNonFinite;
  Severity severity = Severity::kWarning;
  std::optional<std::string> tensor = {};
  std::optional<uint32_t> layer = {};
  std::optional<Pass> pass = {};
  std::optional<uint64_t> micro_batch = {};
  std::vector<uint64_t> rows = {};
  std::optional<double> value = {};
  std::string message = {};
};

/// "nonfinite", "headroom", …
const char* ToString(ReportKind kind);
/// "forward", "backward", "update".
const char* ToString(Pass pass);

/// Returns one line without its line break. A value that is not finite is null.
std::string ToJson(const Report& report);
/// Reads such a line; nothing if it is none. What was written as null is not there. Every report
/// read is a warning, as the file does not say.
std::optional<Report> ParseReport(std::string_view line);

}  // namespace penstock::train
