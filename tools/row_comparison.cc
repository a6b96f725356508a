#include "tools/row_comparison.h"

#include <fmt/ranges.h>

#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "run/row_reader.h"

namespace penstock::train {
namespace {

using ComparedRow = nlohmann::json;
using ComparedRows = std::map<uint64_t, ComparedRow>;  ///< by step

constexpr auto kComputed =
    std::to_array<const char*>({"loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens"});
constexpr size_t kNamedDifferences = 5;

Result<ComparedRows> ReadComparedRows(const Folder& run, uint64_t after, uint64_t last) {
  ComparedRows rows;
  PENSTOCK_TRY(ForEachRow(run, [&](uint64_t step, ComparedRow row) {
    if (step > after && step <= last) rows.insert_or_assign(step, std::move(row));
  }));
  return rows;
}

/// "loss is 2.31, was 2.3"; numbers are written so that other bits are another text.
std::string DifferenceOf(const ComparedRow& before, const ComparedRow& now) {
  std::vector<std::string> differences;
  for (const char* key : kComputed) {
    const std::string was = FieldOf(before, key).dump();
    const std::string is = FieldOf(now, key).dump();
    if (was != is) differences.push_back(fmt::format("{} is {}, was {}", key, is, was));
  }
  return fmt::format("{}", fmt::join(differences, ", "));
}

}  // namespace

Result<RowComparison> CompareRows(const Folder& run, const Folder& replay, uint64_t after,
                                  uint64_t last) {
  PENSTOCK_ASSIGN(const ComparedRows before, ReadComparedRows(run, after, last));
  PENSTOCK_ASSIGN(const ComparedRows now, ReadComparedRows(replay, after, last));
  RowComparison comparison;
  const auto differs = [&comparison](uint64_t step, const std::string& what) {
    ++comparison.differing;
    if (comparison.differences.size() == kNamedDifferences) return;
    comparison.differences.push_back(fmt::format("step {}: {}", step, what));
  };
  for (const auto& [step, row] : before) {
    const auto found = now.find(step);
    if (found == now.end()) {
      differs(step, "the run has a row, but the replay does not reach it");
      continue;
    }
    ++comparison.compared;
    const std::string difference = DifferenceOf(row, found->second);
    if (!difference.empty()) differs(step, difference);
  }
  for (const auto& [step, row] : now) {
    if (before.contains(step) || before.empty() || step > before.rbegin()->first) continue;
    differs(step, "the replay has a row, but the run does not");
  }
  return comparison;
}

Result<std::vector<ReplayedStep>> StepsOfRows(const Folder& run, uint64_t after, uint64_t last) {
  PENSTOCK_ASSIGN(const ComparedRows rows, ReadComparedRows(run, after, last));
  std::vector<ReplayedStep> steps;
  for (const auto& [step, row] : rows) {
    steps.push_back({.step = step,
                     .loss = NumberOf(row, "loss"),
                     .grad_norm = NumberOf(row, "grad_norm"),
                     .lr = NumberOf(row, "lr"),
                     .loss_scale = NumberOf(row, "loss_scale"),
                     .skipped = FieldOf(row, "skipped") == true});
  }
  return steps;
}

Result<std::string> DifferenceFromRow(const Folder& run, uint64_t step, const std::string& row) {
  if (step == 0 || row.empty()) return std::string();
  PENSTOCK_ASSIGN(const ComparedRows rows, ReadComparedRows(run, step - 1, step));
  if (rows.empty()) return std::string();
  return DifferenceOf(rows.begin()->second, ComparedRow::parse(row));
}

}  // namespace penstock::train
