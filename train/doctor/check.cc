#include "train/doctor/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <utility>

namespace penstock::train {
namespace {

constexpr std::array kStateNames = {"ok", "warn", "fail", "unknown"};

constexpr size_t kMaxReportLine = 2000;

/// Names and paths are a user's: what would break the line, or move a terminal's cursor, becomes
/// a question mark.
std::string Printable(std::string text) {
  for (char& character : text) {
    if (character == '\n' || character == '\t') character = ' ';
    const auto byte = static_cast<unsigned char>(character);
    if (byte < 0x20 || byte == 0x7f) character = '?';
  }
  return text;
}

std::string LineOf(const Check& check) {
  std::string line = fmt::format("{:<7}  {:<18}  {}", kStateNames[static_cast<size_t>(check.state)],
                                 check.name, check.found);
  if (!check.advice.empty()) line += "; " + check.advice;
  if (line.size() > kMaxReportLine) {
    line.resize(kMaxReportLine);
    line += "...";
  }
  return Printable(std::move(line)) + "\n";
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
