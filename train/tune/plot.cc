#include "train/tune/plot.h"

#include <algorithm>
#include <array>

#include "tools/plot/svg.h"

namespace penstock::train {
namespace {

constexpr double kMargin = 24;
constexpr double kHeader = 140;      // above the cells: titles and the scale of depths
constexpr double kAxis = 78;         // left of the cells: the scale of block sizes
constexpr double kCellsWidth = 400;  // of one map
constexpr double kCellHeight = 34;
constexpr double kLegend = 150;  // below the cells
constexpr double kMapWidth = kAxis + kCellsWidth;
constexpr double kWidth = kMargin + 3 * (kMapWidth + kMargin);
constexpr Color kInk = {{34, 34, 34}};
constexpr Color kMuted = {{90, 90, 90}};
constexpr const char* kRecommendedMark =
    R"(class="recommended" fill="none" stroke="#e8590c" stroke-width="4")";
constexpr const char* kCeilingMark =
    R"(class="ceiling" fill="none" stroke="#e8590c" stroke-width="2" stroke-dasharray="5 3")";
constexpr const char* kEmptyCell = R"(class="left-out" fill="#e4e4e4" stroke="white")";

/// The positions of the picture's parts.
class Plot {
 public:
  explicit Plot(const TuneReport& report)
      : report_(report),
        columns_(report.plan.scale.queue_depths.size()),
        rows_(report.plan.scale.block_sizes.size()) {
    for (const PointSummary& row : report.grid) {
      for (const DirectionSummary& direction : row.directions) {
        fastest_ = std::max(fastest_, direction.gbps);
      }
    }
  }

  std::string Draw();

 private:
  double cell_width() const { return kCellsWidth / static_cast<double>(columns_); }
  double cells_bottom() const { return kHeader + kCellHeight * static_cast<double>(rows_); }
  double height() const { return cells_bottom() + kLegend; }
  double map_x(size_t map) const {
    return kMargin + static_cast<double>(map) * (kMapWidth + kMargin);
  }
  /// The place of a configuration, whether it was measured or not.
  Box CellBox(size_t map, const TunePoint& point) const;

  void DrawTitles();
  void DrawMap(size_t map);
  void DrawAxes(size_t map);
  void DrawCell(size_t map, const PointSummary& row);
  void DrawEmptyCell(size_t map, const TunePoint& point, const std::string& why);
  void DrawMarks(size_t map);
  void DrawScale();
  void DrawKeys();
  void Text(double x, double y, const TextStyle& style, std::string_view text) {
    svg_ += SvgText(x, y, style, text);
  }

  const TuneReport& report_;
  size_t columns_;
  size_t rows_;
  double fastest_ = 0;
  std::string svg_;
};

Box Plot::CellBox(size_t map, const TunePoint& point) const {
  const TuneScale& scale = report_.plan.scale;
  const auto column = std::ranges::find(scale.queue_depths, point.queue_depth);
  const auto row = std::ranges::find(scale.block_sizes, point.block_size);
  return {.x = map_x(map) + kAxis +
               cell_width() * static_cast<double>(column - scale.queue_depths.begin()),
          .y = kHeader + kCellHeight * static_cast<double>(row - scale.block_sizes.begin()),
          .width = cell_width(),
          .height = kCellHeight};
}

void Plot::DrawTitles() {
  const TuneScale& scale = report_.plan.scale;
  Text(kMargin, 32, {.size = 20, .color = kInk, .bold = true},
       fmt::format("I/O speed of {}", report_.folder));
  Text(kMargin, 54, {.size = 13, .color = kMuted},
       fmt::format("penstock tune, {}. Engine {}, O_DIRECT, random bytes, a file of {}.",
                   report_.date, ToString(report_.plan.grid.front().engine),
                   ToString(scale.file_size)));
  Text(kMargin, 72, {.size = 13, .color = kMuted},
       fmt::format("Each number is GB/s (10^9 bytes a second), the median of {}. Darker is "
                   "faster; all three maps have the same colours.",
                   RoundsText(report_)));
}

void Plot::DrawAxes(size_t map) {
  const TuneScale& scale = report_.plan.scale;
  const double left = map_x(map) + kAxis;
  const double middle = left + kCellsWidth / 2;
  constexpr std::array kTitles = {"Reading", "Writing", "Both at once (sum)"};
  Text(middle, 100, {.size = 15, .anchor = "middle", .color = kInk, .bold = true}, kTitles[map]);
  Text(middle, 117, {.size = 12, .anchor = "middle", .color = kMuted},
       "queue depth: blocks in flight");
  const double above_cells = kHeader - 6;
  for (const int depth : scale.queue_depths) {
    const Box box = CellBox(map, {.block_size = scale.block_sizes.front(), .queue_depth = depth});
    Text(box.center_x(), above_cells, {.anchor = "middle", .color = kInk}, std::to_string(depth));
  }
  for (const Bytes block_size : scale.block_sizes) {
    const Box box =
        CellBox(map, {.block_size = block_size, .queue_depth = scale.queue_depths.front()});
    Text(left - 8, box.center_y() + 4, {.anchor = "end", .color = kInk}, BlockText(block_size));
  }
  Text(map_x(map) + 10, (kHeader + cells_bottom()) / 2,
       {.size = 12, .anchor = "middle", .color = kMuted, .vertical = true}, "block size");
}

void Plot::DrawCell(size_t map, const PointSummary& row) {
  const DirectionSummary& speed = row.directions[map];
  const Box box = CellBox(map, row.point);
  const Color fill = ScaleColor(fastest_ > 0 ? speed.gbps / fastest_ : 0);
  svg_ += SvgRect(
      box, fmt::format(R"(class="cell" fill="{}" stroke="white")", fill.Hex()),
      fmt::format("{} x {}, {}: {:.2f} GB/s ({:.2f} to {:.2f}), latency {:.2f} ms (p99 {:.2f} ms), "
                  "CPU {:.3f} s/GB",
                  BlockText(row.point.block_size), row.point.queue_depth,
                  ToString(kDirections[map]), speed.gbps, speed.gbps_min, speed.gbps_max,
                  speed.median_us / 1e3, speed.p99_us / 1e3, speed.cpu_s_per_gb));
  Text(box.center_x(), box.center_y() + 4, {.anchor = "middle", .color = TextColor(fill)},
       fmt::format("{:.2f}", speed.gbps));
}

void Plot::DrawEmptyCell(size_t map, const TunePoint& point, const std::string& why) {
  const Box box = CellBox(map, point);
  svg_ += SvgRect(box, kEmptyCell, why);
  Text(box.center_x(), box.center_y() + 4, {.anchor = "middle", .color = kMuted}, "–");
}

void Plot::DrawMarks(size_t map) {
  svg_ += SvgRect(CellBox(map, report_.grid[report_.choice.recommended].point).Inset(2),
                  kRecommendedMark);
  svg_ += SvgRect(CellBox(map, report_.grid[report_.choice.ceiling].point).Inset(6), kCeilingMark);
}

void Plot::DrawMap(size_t map) {
  DrawAxes(map);
  for (const PointSummary& row : report_.grid) {
    if (row.measured()) {
      DrawCell(map, row);
    } else {
      DrawEmptyCell(map, row.point, row.reason);
    }
  }
  for (const TunePoint& point : report_.plan.left_out) {
    DrawEmptyCell(map, point, fmt::format("{} would be in flight", ToString(point.in_flight())));
  }
  DrawMarks(map);
}

void Plot::DrawScale() {
  const Box box = {.x = map_x(2) + kAxis, .y = cells_bottom() + 28, .width = 320, .height = 16};
  svg_ += "<defs><linearGradient id=\"scale\">";
  for (int i = 0; i < kScaleColors; ++i) {
    const double share = i / static_cast<double>(kScaleColors - 1);
    svg_ += fmt::format(R"(<stop offset="{}" stop-color="{}"/>)", share, ScaleColor(share).Hex());
  }
  svg_ += "</linearGradient></defs>\n";
  svg_ += SvgRect(box, R"x(fill="url(#scale)" stroke="#999999")x");
  const double below = box.y + box.height + 16;
  Text(box.x, below, {.anchor = "middle", .color = kInk}, "0");
  Text(box.x + box.width, below, {.anchor = "middle", .color = kInk},
       fmt::format("{:.2f} GB/s", fastest_));
}

void Plot::DrawKeys() {
  const PointSummary& ceiling = report_.grid[report_.choice.ceiling];
  const PointSummary& recommended = report_.grid[report_.choice.recommended];
  const TunePoint& chosen = Recommended(report_);
  const double x = kMargin;
  double y = cells_bottom() + 24;
  const auto key = [&](const char* attributes, double inset, const std::string& text) {
    svg_ += SvgRect(Box{.x = x, .y = y, .width = 36, .height = 24}.Inset(inset), attributes);
    Text(x + 46, y + 17, {.size = 13, .color = kInk}, text);
    y += 30;
  };
  key(kRecommendedMark, 2,
      fmt::format("Recommended: {} x {}, engine {}, {} thread{}. The least in flight ({}) within 2 "
                  "% of the ceiling: {:.2f} GB/s.",
                  BlockText(chosen.block_size), chosen.queue_depth, ToString(chosen.engine),
                  chosen.thread_count, chosen.thread_count == 1 ? "" : "s",
                  ToString(chosen.in_flight()), CombinedGbps(recommended)));
  key(kCeilingMark, 4,
      fmt::format("Ceiling: {} x {}, the fastest over reading, writing and both taken together "
                  "(their harmonic mean): {:.2f} GB/s.",
                  BlockText(ceiling.point.block_size), ceiling.point.queue_depth,
                  CombinedGbps(ceiling)));
  key(kEmptyCell, 2,
      fmt::format("Not measured: more than {} would be in flight, or no time was left.",
                  ToString(report_.plan.in_flight_limit)));
  Text(x, y + 14, {.size = 13, .color = kMuted},
       fmt::format("Between rounds, the speed of one configuration differs by {:.0f} %; smaller "
                   "differences between cells mean nothing.",
                   100 * TypicalSpread(report_.grid)));
}

std::string Plot::Draw() {
  DrawTitles();
  for (size_t map = 0; map < kDirections.size(); ++map) DrawMap(map);
  DrawScale();
  DrawKeys();
  return SvgDocument(kWidth, height(), svg_);
}

}  // namespace

std::string PlotSvg(const TuneReport& report) { return Plot(report).Draw(); }

}  // namespace penstock::train
