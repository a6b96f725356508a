#include "tools/plot/line_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace penstock::train {
namespace {

constexpr double kEdge = 24;
constexpr double kTitles = 84;     // above the first panel
constexpr double kAxisWidth = 84;  // left of the panels
constexpr double kPlotWidth = 720;
constexpr double kLegendWidth = 210;  // right of the panels
constexpr double kPanelHeight = 150;
constexpr double kPanelGap = 46;
constexpr double kFooter = 40;  // below the last panel: the horizontal axis
constexpr double kChartWidth = kEdge + kAxisWidth + kPlotWidth + kLegendWidth;
constexpr double kLegendLine = 18;
constexpr size_t kLegendLines = 8;
constexpr Color kTextInk = {{34, 34, 34}};
constexpr Color kFaintInk = {{90, 90, 90}};
constexpr Color kLimitInk = {{201, 42, 42}};

struct Span {
  double least = std::numeric_limits<double>::infinity();
  double most = -std::numeric_limits<double>::infinity();
  void Take(double value) {
    least = std::min(least, value);
    most = std::max(most, value);
  }
};

Axis HorizontalAxis(const Chart& chart) {
  Span span;
  for (const ChartPanel& panel : chart.panels) {
    for (const ChartLine& line : panel.lines) {
      for (const ChartPoint& point : line.points) span.Take(point.x);
    }
    for (const ChartMarks& of : panel.marks) {
      for (const ChartMark& mark : of.marks) span.Take(mark.x);
    }
  }
  return {AxisScale::kLinear, span.least, span.most};
}

Axis VerticalAxis(const ChartPanel& panel) {
  Span span;
  const Axis any(panel.scale, 1, 1);  // says which values have a place
  for (const ChartLine& line : panel.lines) {
    for (const ChartPoint& point : line.points) {
      if (any.Has(point.y)) span.Take(point.y);
    }
  }
  for (const ChartLimit& limit : panel.limits) span.Take(limit.y);
  return {panel.scale, span.least, span.most};
}

class ChartDrawing {
 public:
  explicit ChartDrawing(const Chart& chart) : chart_(chart), x_(HorizontalAxis(chart)) {}

  std::string Draw();

 private:
  double height() const {
    return kTitles + static_cast<double>(chart_.panels.size()) * (kPanelHeight + kPanelGap) +
           kFooter;
  }
  static double left() { return kEdge + kAxisWidth; }
  double XOf(double x) const { return left() + kPlotWidth * x_.Place(x); }

  void DrawPanel(const ChartPanel& panel, double top);
  void DrawFrame(const ChartPanel& panel, const Axis& y, double top);
  void DrawLine(const ChartLine& line, const Axis& y, double top);
  void DrawLimits(const ChartPanel& panel, const Axis& y, double top);
  void DrawMarks(const ChartMarks& marks, double top);
  void DrawPanelLegend(const ChartPanel& panel, double top);
  void DrawSteps(double top);
  void Text(double x, double y, const TextStyle& style, std::string_view text) {
    svg_ += SvgText(x, y, style, text);
  }
  void Stroke(double x1, double y1, double x2, double y2, std::string_view attributes) {
    svg_ += fmt::format(R"(<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" {}/>)"
                        "\n",
                        x1, y1, x2, y2, attributes);
  }

  const Chart& chart_;
  Axis x_;
  std::string svg_;
};

/// Where a value lies in a panel whose upper edge is `top`.
double YOf(const Axis& y, double top, double value) {
  return top + kPanelHeight * (1 - y.Place(value));
}

/// The points of a line, at most a few to a column of pixels: the first, the least, the largest and
/// the last of each. A point without a place on the axis stays, as the line breaks there.
std::vector<ChartPoint> Thinned(const std::vector<ChartPoint>& points, const Axis& x,
                                const Axis& y) {
  if (points.size() <= 2 * static_cast<size_t>(kPlotWidth)) return points;
  std::vector<ChartPoint> thin;
  for (size_t begin = 0; begin < points.size();) {
    const auto column = [&](size_t i) { return std::floor(kPlotWidth * x.Place(points[i].x)); };
    size_t end = begin, least = begin, most = begin;
    for (; end < points.size() && column(end) == column(begin); ++end) {
      if (!y.Has(points[end].y)) break;
      if (points[end].y < points[least].y) least = end;
      if (points[end].y > points[most].y) most = end;
    }
    if (end == begin) {  // a break
      thin.push_back(points[begin++]);
      continue;
    }
    std::vector<size_t> kept = {begin, least, most, end - 1};
    std::ranges::sort(kept);
    kept.erase(std::unique(kept.begin(), kept.end()), kept.end());
    for (const size_t i : kept) thin.push_back(points[i]);
    begin = end;
  }
  return thin;
}

void ChartDrawing::DrawFrame(const ChartPanel& panel, const Axis& y, double top) {
  Text(left(), top - 8, {.size = 14, .color = kTextInk, .bold = true}, panel.title);
  for (const Tick& tick : y.Ticks(5)) {
    const double at = YOf(y, top, tick.value);
    Stroke(left(), at, left() + kPlotWidth, at, R"(stroke="#e4e4e4")");
    Text(left() - 8, at + 4, {.anchor = "end", .color = kTextInk}, tick.text);
  }
  svg_ += SvgRect({.x = left(), .y = top, .width = kPlotWidth, .height = kPanelHeight},
                  R"(class="panel" fill="none" stroke="#999999")");
  Text(kEdge + 10, top + kPanelHeight / 2,
       {.anchor = "middle", .color = kFaintInk, .vertical = true}, panel.unit);
}

void ChartDrawing::DrawLine(const ChartLine& line, const Axis& y, double top) {
  std::string path;
  bool drawing = false;
  double before = 0;
  size_t run = 0;  // points since the last break
  const auto dot = [&](const ChartPoint& point) {
    svg_ += fmt::format(R"(<circle cx="{:.1f}" cy="{:.1f}" r="1.5" fill="{}"/>)"
                        "\n",
                        XOf(point.x), YOf(y, top, point.y), line.color.Hex());
  };
  const std::vector<ChartPoint> points = Thinned(line.points, x_, y);
  for (size_t i = 0; i < points.size(); ++i) {
    const bool has = y.Has(points[i].y);
    if (!has) {
      if (run == 1) dot(points[i - 1]);
      drawing = false;
      run = 0;
      continue;
    }
    const double at = YOf(y, top, points[i].y);
    if (drawing && line.stairs) path += fmt::format("L{:.1f} {:.1f}", XOf(points[i].x), before);
    path += fmt::format("{}{:.1f} {:.1f}", drawing ? 'L' : 'M', XOf(points[i].x), at);
    drawing = true;
    before = at;
    ++run;
  }
  if (run == 1) dot(points.back());
  if (path.empty()) return;
  svg_ += fmt::format(
      R"(<path class="line" fill="none" stroke="{}" stroke-width="1.5" stroke-linejoin="round" d="{}"/>)"
      "\n",
      line.color.Hex(), path);
}

void ChartDrawing::DrawLimits(const ChartPanel& panel, const Axis& y, double top) {
  for (const ChartLimit& limit : panel.limits) {
    const double at = YOf(y, top, limit.y);
    Stroke(left(), at, left() + kPlotWidth, at,
           fmt::format(R"(class="limit" stroke="{}" stroke-dasharray="5 3")", kLimitInk.Hex()));
    Text(left() + kPlotWidth - 6, at - 4, {.size = 11, .anchor = "end", .color = kLimitInk},
         limit.text);
  }
}

void ChartDrawing::DrawMarks(const ChartMarks& marks, double top) {
  const double low = top + kPanelHeight;
  for (const ChartMark& mark : marks.marks) {
    const double at = XOf(mark.x);
    svg_ += fmt::format(
        R"(<path class="mark" fill="{}" d="M{:.1f} {:.1f}l-5 9h10z"><title>{}</title></path>)"
        "\n",
        marks.color.Hex(), at, low - 9, EscapeXml(mark.tooltip));
  }
}

void ChartDrawing::DrawPanelLegend(const ChartPanel& panel, double top) {
  const double x = left() + kPlotWidth + 14;
  double y = top + 12;
  const auto entry = [&](const Color& color, const std::string& name) {
    svg_ += SvgRect({.x = x, .y = y - 9, .width = 16, .height = 9},
                    fmt::format(R"(class="key" fill="{}")", color.Hex()));
    Text(x + 22, y, {.size = 12, .color = kTextInk}, name);
    y += kLegendLine;
  };
  const std::vector<ChartLine>& lines = panel.lines;
  if (lines.size() <= kLegendLines) {
    for (const ChartLine& line : lines) entry(line.color, line.name);
  } else {
    for (const size_t i : {size_t{0}, lines.size() / 2, lines.size() - 1}) {
      entry(lines[i].color, lines[i].name);
    }
  }
  for (const ChartMarks& marks : panel.marks) {
    if (!marks.marks.empty()) {
      entry(marks.color, fmt::format("{} ({})", marks.name, marks.marks.size()));
    }
  }
}

void ChartDrawing::DrawPanel(const ChartPanel& panel, double top) {
  const Axis y = VerticalAxis(panel);
  DrawFrame(panel, y, top);
  DrawLimits(panel, y, top);
  for (const ChartLine& line : panel.lines) DrawLine(line, y, top);
  for (const ChartMarks& marks : panel.marks) DrawMarks(marks, top);
  DrawPanelLegend(panel, top);
  const bool empty = std::ranges::all_of(panel.lines, [&y](const ChartLine& line) {
    return std::ranges::none_of(line.points,
                                [&y](const ChartPoint& point) { return y.Has(point.y); });
  });
  if (empty) {
    Text(left() + kPlotWidth / 2, top + kPanelHeight / 2,
         {.size = 13, .anchor = "middle", .color = kFaintInk}, panel.if_empty);
  }
}

void ChartDrawing::DrawSteps(double top) {
  for (const Tick& tick : x_.Ticks(8)) {
    if (tick.value != std::floor(tick.value)) continue;  // steps are whole
    const double at = XOf(tick.value);
    Stroke(at, top, at, top + 5, R"(stroke="#999999")");
    Text(at, top + 18, {.anchor = "middle", .color = kTextInk}, tick.text);
  }
}

std::string ChartDrawing::Draw() {
  Text(kEdge, 32, {.size = 20, .color = kTextInk, .bold = true}, chart_.title);
  Text(kEdge, 54, {.size = 13, .color = kFaintInk}, chart_.subtitle);
  double top = kTitles + 8;
  for (const ChartPanel& panel : chart_.panels) {
    DrawPanel(panel, top);
    DrawSteps(top + kPanelHeight);
    top += kPanelHeight + kPanelGap;
  }
  Text(left() + kPlotWidth / 2, top - kPanelGap + 38, {.anchor = "middle", .color = kFaintInk},
       chart_.x_title);
  return SvgDocument(kChartWidth, height(), svg_);
}

}  // namespace

std::string DrawChart(const Chart& chart) { return ChartDrawing(chart).Draw(); }

}  // namespace penstock::train
