#include "run/identity/skipped_steps.h"

#include <algorithm>
#include <string_view>

#include "base/units.h"

namespace penstock::train {
namespace {

Error RefusedSkip(const StepRange& range, const std::string& why) {
  return MakeError(ErrorCode::kInvalidArgument, "--skip-steps {}: {}", ToText(range), why);
}

Result<StepRange> ParseRange(const std::string& text) {
  const size_t colon = text.find(':');
  if (colon != std::string::npos) {
    const WholeRange numbers = {.low = 1, .high = kLastStepNumber};
    const Result<uint64_t> first = ParseWhole(text.substr(0, colon), numbers);
    const Result<uint64_t> last = ParseWhole(text.substr(colon + 1), numbers);
    if (first.ok() && last.ok() && *first <= *last) return StepRange{*first, *last};
  }
  return MakeError(ErrorCode::kInvalidArgument,
                   "--skip-steps {}: give the first and the last step to pass over, like 103:105",
                   text);
}

/// A new range: whether it can still be passed over.
Status CheckNew(const StepRange& range, const std::vector<StepRange>& others, uint64_t committed) {
  if (range.first <= committed) {
    return RefusedSkip(range,
                       fmt::format("step {} is committed, so only steps from {} on can be passed "
                                   "over; give later ones, or resume from an earlier snapshot "
                                   "(--resume-from)",
                                   committed, committed + 1));
  }
  for (const StepRange& other : others) {
    if (other.last < range.first || range.last < other.first) continue;
    return RefusedSkip(
        range, fmt::format("the run passes over {} already; give other steps", ToText(other)));
  }
  return {};
}

}  // namespace

std::string ToText(const StepRange& range) { return fmt::format("{}:{}", range.first, range.last); }

std::string ToText(const std::vector<StepRange>& ranges) {
  std::string text;
  for (const StepRange& range : ranges) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", ToText(range));
  }
  return text;
}

Result<std::vector<StepRange>> ParseSkips(const std::vector<std::string>& texts) {
  std::vector<StepRange> ranges;
  for (const std::string& text : texts) {
    PENSTOCK_ASSIGN(const StepRange range, ParseRange(text));
    ranges.push_back(range);
  }
  return ranges;
}

Result<std::vector<StepRange>> AddSkips(const std::vector<StepRange>& recorded,
                                        const std::vector<StepRange>& asked, uint64_t committed,
                                        uint64_t last_step) {
  std::vector<StepRange> all = recorded;
  for (const StepRange& range : asked) {
    // The same command again, after a kill.
    if (std::ranges::find(all, range) != all.end()) continue;
    PENSTOCK_TRY(CheckNew(range, all, committed));
    all.push_back(range);
  }
  std::ranges::sort(all, {}, &StepRange::first);
  for (const StepRange& range : all) {
    if (!range.Has(last_step) || last_step <= committed) continue;
    return RefusedSkip(range,
                       fmt::format("the run would end with step {}, which is passed over; give "
                                   "--steps {} or more",
                                   last_step, range.last + 1));
  }
  return all;
}

}  // namespace penstock::train
