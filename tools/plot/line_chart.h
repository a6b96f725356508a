// Charts over a common horizontal axis, one below the other, as one SVG without scripts and without
// external fonts.
//
// Plain text making. Threads: any.
#pragma once

#include <string>
#include <vector>

#include "tools/plot/axis.h"
#include "tools/plot/svg.h"

namespace penstock::train {

struct ChartPoint {
  double x = 0;
  double y = 0;  ///< what the axis has no place for (NaN, say) breaks the line
};

struct ChartLine {
  std::string name;  ///< for the legend
  Color color;
  std::vector<ChartPoint> points;  ///< in the order of x
  bool stairs = false;             ///< a value holds until the next one
};

/// A mark at the lower edge of a panel.
struct ChartMark {
  double x = 0;
  std::string tooltip;
};
/// Marks of one kind, with what the legend says of them.
struct ChartMarks {
  std::string name;
  Color color;
  std::vector<ChartMark> marks;
};

/// A dashed line across a panel, at a value that matters.
struct ChartLimit {
  double y = 0;
  std::string text;
};

struct ChartPanel {
  std::string title;
  std::string unit;  ///< of the vertical axis
  AxisScale scale = AxisScale::kLinear;
  std::vector<ChartLine> lines;
  std::vector<ChartMarks> marks;
  std::vector<ChartLimit> limits;  ///< are within the axis
  std::string if_empty;            ///< what the panel says if it has no point
};

struct Chart {
  std::string title;
  std::string subtitle;
  std::string x_title;
  std::vector<ChartPanel> panels;
};

/// Of lines with more points than the chart is wide, the least and the largest value of each column
/// are drawn. Of more than eight lines the legend has the first, the middle and the last.
std::string DrawChart(const Chart& chart);

}  // namespace penstock::train
