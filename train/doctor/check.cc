#include "train/doctor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

#include "base/message_text.h"

namespace penstock::train {
namespace {

constexpr std::array kStateNames = {"ok", "warn", "fail", "unknown"};

std::string LineOf(const Check& check) {
  std::string line = fmt::format("{:<7}  {:<18}  {}", kStateNames[static_cast<size_t>(check.state)],
                                 check.name, check.found);
  if (!check.advice.empty()) line += "; " + check.advice;
  return MessageLine(line) + "\n";
}

}  // namespace

Check OkCheck(std::string name, std::string found) {
  return {.state = CheckState::kOk, .name = std::move(name), .found = std::move(found)};
}

Check WarnCheck(std::string name, std::string found, std::string advice) {
  return {CheckState::kWarn, std::move(name), std::move(found), std::move(advice)};
}

Check FailCheck(std::string name, std::string found, std::string advice) {
  return {CheckState::kFail, std::move(name), std::move(found), std::move(advice)};
}

Check UnknownCheck(std::string name, std::string why) {
  return {.state = CheckState::kUnknown, .name = std::move(name), .found = std::move(why)};
}

std::string ToText(const Checks& checks) {
  std::string text;
  std::array<size_t, kStateNames.size()> counts = {};
  for (const Check& check : checks) {
    text += LineOf(check);
    ++counts[static_cast<size_t>(check.state)];
  }
  return text + fmt::format("{} checks: {} ok, {} warn, {} fail, {} unknown\n", checks.size(),
                            counts[0], counts[1], counts[2], counts[3]);
}

bool HasFailed(const Checks& checks) {
  return std::ranges::any_of(checks,
                             [](const Check& check) { return check.state == CheckState::kFail; });
}

void Append(Checks more, Checks* checks) {
  checks->insert(checks->end(), std::make_move_iterator(more.begin()),
                 std::make_move_iterator(more.end()));
}

}  // namespace penstock::train
