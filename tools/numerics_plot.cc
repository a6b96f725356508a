#include "tools/numerics_plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "numerics/headroom.h"
#include "numerics/thresholds.h"
#include "tools/plot/line_chart.h"

namespace penstock::train {
namespace {

constexpr Color kLineColor = {{8, 81, 156}};
constexpr Color kSkippedColor = {{134, 142, 150}};
constexpr Color kReportColor = {{232, 89, 12}};
/// A loss that spans more than this factor is drawn on a logarithmic axis.
constexpr double kWideLoss = 50;

enum class PanelOf { kLoss, kNorm, kScale, kHeadroom };

PanelOf PanelFor(ReportKind kind) {
  switch (kind) {
    case ReportKind::kNormSpike:
    case ReportKind::kUpdate:
      return PanelOf::kNorm;
    case ReportKind::kStreak:
    case ReportKind::kUnderflow:
    case ReportKind::kOverflows:
      return PanelOf::kScale;
    case ReportKind::kHeadroom:
      return PanelOf::kHeadroom;
    case ReportKind::kNonFinite:
    case ReportKind::kLossSpike:
      break;
  }
  return PanelOf::kLoss;
}

ChartMarks ReportMarks(const RunNumerics& numerics, PanelOf panel) {
  ChartMarks marks{.name = "report", .color = kReportColor};
  for (const Report& report : numerics.reports) {
    if (PanelFor(report.kind) == panel) {
      marks.marks.push_back({static_cast<double>(report.step), report.message});
    }
  }
  return marks;
}

ChartMarks SkippedMarks(const RunNumerics& numerics) {
  ChartMarks marks{.name = "skipped step", .color = kSkippedColor};
  for (const NumericsRow& row : numerics.rows) {
    if (!row.skipped) continue;
    marks.marks.push_back(
        {static_cast<double>(row.step), fmt::format("step {} was skipped", row.step)});
  }
  return marks;
}

ChartLine LineOfRows(const RunNumerics& numerics, const char* name, double NumericsRow::*value) {
  ChartLine line{.name = name, .color = kLineColor};
  for (const NumericsRow& row : numerics.rows) {
    line.points.push_back({static_cast<double>(row.step), row.*value});
  }
  return line;
}

AxisScale LossScaleOf(const RunNumerics& numerics) {
  double least = std::numeric_limits<double>::infinity(), most = 0;
  for (const NumericsRow& row : numerics.rows) {
    if (!std::isfinite(row.loss)) continue;
    least = std::min(least, row.loss);
    most = std::max(most, row.loss);
  }
  return least > 0 && most > kWideLoss * least ? AxisScale::kLog10 : AxisScale::kLinear;
}

/// The least headroom of a layer's three outputs; NaN where nothing is known or not finite.
double HeadroomOf(const LayerNumbers& layer) {
  double largest = 0;
  bool known = false;
  for (const std::optional<double>& value : {layer.attention, layer.mlp, layer.residual}) {
    if (!value) continue;
    known = true;
    largest = std::max(largest, *value);
  }
  return known ? HeadroomBits(largest) : std::numeric_limits<double>::quiet_NaN();
}

std::vector<ChartLine> HeadroomLines(const RunNumerics& numerics) {
  size_t layers = 0;
  for (const HeadroomRow& row : numerics.headroom) layers = std::max(layers, row.layers.size());
  std::vector<ChartLine> lines(layers);
  for (size_t layer = 0; layer < layers; ++layer) {
    ChartLine& line = lines[layer];
    line.name = fmt::format("layer {}", layer);
    // The lightest colours cannot be seen on white.
    const double share =
        layers == 1 ? 1 : static_cast<double>(layer) / static_cast<double>(layers - 1);
    line.color = ScaleColor(0.35 + 0.65 * share);
    line.stairs = true;
    for (const HeadroomRow& row : numerics.headroom) {
      if (layer >= row.layers.size()) continue;
      line.points.push_back({static_cast<double>(row.step), HeadroomOf(row.layers[layer])});
    }
    // A value holds until the next line of the file, so the last one until the last step.
    if (!line.points.empty() && !numerics.rows.empty()) {
      const auto last = static_cast<double>(numerics.rows.back().step);
      if (last > line.points.back().x) line.points.push_back({last, line.points.back().y});
    }
  }
  return lines;
}

ChartPanel HeadroomPanel(const RunNumerics& numerics) {
  ChartPanel panel{.title = "Headroom by layer: doublings left until fp16 overflows",
                   .unit = "bits",
                   .lines = HeadroomLines(numerics),
                   .marks = {ReportMarks(numerics, PanelOf::kHeadroom)},
                   .if_empty = "the run has no headroom.jsonl: nothing is known of its layers"};
  if (!panel.lines.empty()) {
    panel.limits = {{0, "fp16 overflows"}, {kMinHeadroom, "reported below"}};
  }
  return panel;
}

}  // namespace

std::string PlotSvg(const RunNumerics& numerics) {
  const char* no_rows = "the run has no rows";
  ChartLine scale = LineOfRows(numerics, "loss scale", &NumericsRow::loss_scale);
  scale.stairs = true;
  const auto steps = numerics.rows.size();
  Chart chart{.title = fmt::format("Numbers of {}", numerics.run),
              .subtitle = fmt::format("penstock numerics: {} step{}, {} report{}. Point at a "
                                      "mark to read its line.",
                                      steps, steps == 1 ? "" : "s", numerics.reports.size(),
                                      numerics.reports.size() == 1 ? "" : "s"),
              .x_title = "step"};
  chart.panels = {{.title = "Loss",
                   .unit = numerics.kind == RunKind::kTrain ? "nats per token" : "as reported",
                   .scale = LossScaleOf(numerics),
                   .lines = {LineOfRows(numerics, "loss", &NumericsRow::loss)},
                   .marks = {SkippedMarks(numerics), ReportMarks(numerics, PanelOf::kLoss)},
                   .if_empty = no_rows},
                  {.title = "Norm of the gradient, unscaled and before clipping",
                   .unit = "norm (log)",
                   .scale = AxisScale::kLog10,
                   .lines = {LineOfRows(numerics, "gradient norm", &NumericsRow::grad_norm)},
                   .marks = {ReportMarks(numerics, PanelOf::kNorm)},
                   .if_empty = no_rows},
                  {.title = "Loss scale",
                   .unit = "scale (log)",
                   .scale = AxisScale::kLog2,
                   .lines = {std::move(scale)},
                   .marks = {ReportMarks(numerics, PanelOf::kScale)},
                   .if_empty = no_rows},
                  HeadroomPanel(numerics)};
  return DrawChart(chart);
}

}  // namespace penstock::train
