// Sections that are often written in a place where DeepSpeed does not read them.
#include <fmt/format.h>

#include "config/sections.h"

namespace penstock::config {
namespace {

using nlohmann::json;

constexpr const char* kWrong = "zero_optimization.aio";
constexpr const char* kRight = "aio";

}  // namespace

Status MoveMisplaced(JsonDocument& document, std::vector<std::string>& notices) {
  const json& root = document.root();
  const auto zero = root.find("zero_optimization");
  if (zero == root.end() || !zero->is_object() || !zero->contains(kRight)) return {};
  const json wrong = zero->at(kRight);
  const auto right = root.find(kRight);
  const bool both = right != root.end() && right->is_object();
  if (!wrong.is_object() || (right != root.end() && !both && !right->is_null())) return {};
  for (const auto& [key, value] : wrong.items()) {
    if (!both || !right->contains(key) || right->at(key) == value) continue;
    return MakeError(ErrorCode::kInvalidArgument,
                     "{}{}: {} differs from {}.{} {}; remove {}: DeepSpeed reads {} at the top "
                     "level only",
                     document.Where(JoinJsonPath(kWrong, key)), ShowPath(JoinJsonPath(kWrong, key)),
                     Show(value), kRight, ShowPath(key), Show(right->at(key)), kWrong, kRight);
  }
  document.Move(kWrong, kRight);
  notices.push_back(
      fmt::format("{} is read as {}, at the top level, where DeepSpeed has it", kWrong, kRight));
  return {};
}

}  // namespace penstock::config
