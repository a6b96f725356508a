#include "tools/run_numerics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "base/strict_json.h"
#include "numerics/headroom.h"
#include "run/rows/numerics_files.h"
#include "run/run_folder.h"

namespace penstock::train {
namespace {

std::string TextOr(const nlohmann::json& json, const char* key) {
  const auto found = json.find(key);
  return found != json.end() && found->is_string() ? found->get<std::string>() : "";
}

std::string Counted(size_t count, const char* what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

/// "min headroom: 4.2 bits, mlp of layer 1 at step 1".
std::string LeastHeadroom(const std::vector<HeadroomRow>& rows) {
  double least = std::numeric_limits<double>::infinity();
  std::string where;
  for (const HeadroomRow& row : rows) {
    for (size_t layer = 0; layer < row.layers.size(); ++layer) {
      const LayerNumbers& of = row.layers[layer];
      const auto take = [&](const std::optional<double>& largest, const char* name) {
        const double bits = largest ? HeadroomBits(*largest) : least;
        if (!(bits < least)) return;
        least = bits;
        where = fmt::format("{} of layer {} at step {}", name, layer, row.step);
      };
      take(of.attention, "attention");
      take(of.mlp, "mlp");
      take(of.residual, "residual stream");
    }
  }
  return where.empty() ? "" : fmt::format("min headroom to fp16: {:.1f} bits, {}\n", least, where);
}

/// The line without its "step N: ", which has a column of its own.
std::string WithoutStep(const Report& report) {
  const std::string prefix = fmt::format("step {}: ", report.step);
  return report.message.starts_with(prefix) ? report.message.substr(prefix.size()) : report.message;
}

std::string StopLines(const NumericsStop& stop) {
  std::string text = fmt::format("ended at step {}: {}\n", stop.step, stop.line);
  if (!stop.first_cause.empty()) text += fmt::format("first cause: {}\n", stop.first_cause);
  if (!stop.advice.empty()) text += fmt::format("advice: {}\n", stop.advice);
  return text;
}

}  // namespace

Result<std::optional<NumericsStop>> ReadNumericsStop(const Folder& run) {
  const Result<std::string> text = ReadTextFile(run, kBlackBoxName, kMaxOwnText);
  if (!text.ok() && text.error().code == ErrorCode::kNotFound) {
    return std::optional<NumericsStop>();
  }
  PENSTOCK_TRY(text.status());
  PENSTOCK_ASSIGN(const nlohmann::json json,
                  ParseJsonObject(*text, run.PathOf(kBlackBoxName), ErrorCode::kCorruption));
  NumericsStop stop{.line = TextOr(json, "stop"), .advice = TextOr(json, "advice")};
  if (json.contains("step") && json["step"].is_number_unsigned()) {
    stop.step = json["step"].get<uint64_t>();
  }
  if (json.contains("first_cause") && json["first_cause"].is_object()) {
    stop.first_cause = TextOr(json["first_cause"], "message");
  }
  return std::optional(std::move(stop));
}

Result<RunNumerics> ReadRunNumerics(const std::string& run) {
  PENSTOCK_ASSIGN(const Folder folder, OpenRun(run));
  PENSTOCK_ASSIGN(const RunInfo info, ReadRunInfo(folder));
  RunNumerics numerics{.run = run, .kind = info.kind};
  PENSTOCK_ASSIGN(numerics.rows, ReadNumericsRows(folder));
  PENSTOCK_ASSIGN(numerics.reports, ReadReports(folder));
  PENSTOCK_ASSIGN(numerics.headroom, ReadHeadroom(folder));
  PENSTOCK_ASSIGN(numerics.stop, ReadNumericsStop(folder));
  return numerics;
}

std::string ToTable(const RunNumerics& numerics) {
  if (numerics.kind != RunKind::kTrain && numerics.rows.empty() && numerics.reports.empty()) {
    return fmt::format(
        "{}: a run of {} without rows: its steps report no loss; report it by "
        "optimizer.step(loss=loss)\n",
        numerics.run, ToString(numerics.kind));
  }
  const auto skipped = std::ranges::count_if(numerics.rows, &NumericsRow::skipped);
  std::string text =
      fmt::format("{}: {} ({} skipped), {}\n", numerics.run, Counted(numerics.rows.size(), "step"),
                  skipped, Counted(numerics.reports.size(), "report"));
  text += LeastHeadroom(numerics.headroom);
  if (numerics.stop) text += StopLines(*numerics.stop);
  if (numerics.reports.empty()) return text;
  size_t widest = 6;
  for (const Report& report : numerics.reports) {
    widest = std::max(widest, report.tensor.value_or("").size());
  }
  text += fmt::format("\n{:>8}  {:<10}  {:<8}  {:<{}}  {:>10}  {}\n", "step", "kind", "pass",
                      "tensor", widest, "value", "what, and what to do");
  for (const Report& report : numerics.reports) {
    text += fmt::format(
        "{:>8}  {:<10}  {:<8}  {:<{}}  {:>10}  {}\n", report.step, ToString(report.kind),
        report.pass ? ToString(*report.pass) : "-", report.tensor.value_or("-"), widest,
        report.value ? fmt::format("{:.4g}", *report.value) : "-", WithoutStep(report));
  }
  return text;
}

}  // namespace penstock::train
