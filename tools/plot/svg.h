// Writing SVG: the few elements that a plot needs, as text.
//
// Plain text making; lengths are in user units (pixels at 100 %). Threads: any.
#pragma once

#include <array>
#include <string>
#include <string_view>

namespace penstock::train {

/// An sRGB colour, 0 to 255 each.
struct Color {
  std::array<int, 3> channels{};
  std::string Hex() const;
};

/// The colour of `share` (clamped to [0, 1]) on a scale of one hue that gets evenly darker to the
/// eye: "Blues" of ColorBrewer (Harrower and Brewer, "ColorBrewer.org", The Cartographic Journal
/// 40(1), 2003), interpolated.
Color ScaleColor(double share);
/// How many colours ScaleColor interpolates between.
inline constexpr int kScaleColors = 9;

/// The contrast ratio of WCAG 2 (section 1.4.3), 1 to 21.
double Contrast(const Color& a, const Color& b);
/// Black or white, whichever is easier to read on `background`; the contrast is above 4.5.
Color TextColor(const Color& background);

/// `text` for an XML attribute or element.
std::string EscapeXml(std::string_view text);

struct Box {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;

  double center_x() const { return x + width / 2; }
  double center_y() const { return y + height / 2; }
  /// This box without a border of `by` inside it.
  Box Inset(double by) const { return {x + by, y + by, width - 2 * by, height - 2 * by}; }
};

/// <rect> with further attributes as they are. `tooltip` is what a browser shows under the pointer.
std::string SvgRect(const Box& box, std::string_view attributes, std::string_view tooltip = {});

/// A whole picture on white ground.
std::string SvgDocument(double width, double height, std::string_view content);

struct TextStyle {
  int size = 12;
  const char* anchor = "start";  ///< "start", "middle", "end"
  Color color;
  bool bold = false;
  bool vertical = false;  ///< reads upwards
};
/// <text> with its baseline at y.
std::string SvgText(double x, double y, const TextStyle& style, std::string_view text);

}  // namespace penstock::train
