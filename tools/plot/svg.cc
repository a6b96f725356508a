#include "tools/plot/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace penstock::train {
namespace {

constexpr std::array<Color, kScaleColors> kBlues = {{{{247, 251, 255}},
                                                     {{222, 235, 247}},
                                                     {{198, 219, 239}},
                                                     {{158, 202, 225}},
                                                     {{107, 174, 214}},
                                                     {{66, 146, 198}},
                                                     {{33, 113, 181}},
                                                     {{8, 81, 156}},
                                                     {{8, 48, 107}}}};
constexpr Color kBlack = {{0, 0, 0}};
constexpr Color kWhite = {{255, 255, 255}};

/// The relative luminance of WCAG 2.
double Luminance(const Color& color) {
  constexpr std::array kWeights = {0.2126, 0.7152, 0.0722};
  double luminance = 0;
  for (size_t i = 0; i < kWeights.size(); ++i) {
    const double s = color.channels[i] / 255.0;
    luminance += kWeights[i] * (s <= 0.03928 ? s / 12.92 : std::pow((s + 0.055) / 1.055, 2.4));
  }
  return luminance;
}

}  // namespace

std::string Color::Hex() const {
  return fmt::format("#{:02x}{:02x}{:02x}", channels[0], channels[1], channels[2]);
}

Color ScaleColor(double share) {
  const double place = std::clamp(share, 0.0, 1.0) * (kScaleColors - 1);
  const size_t below = std::min(static_cast<size_t>(place), kBlues.size() - 2);
  const double part = place - static_cast<double>(below);
  Color color;
  for (size_t i = 0; i < color.channels.size(); ++i) {
    const int from = kBlues[below].channels[i];
    const int to = kBlues[below + 1].channels[i];
    color.channels[i] = static_cast<int>(std::lround(from + part * (to - from)));
  }
  return color;
}

double Contrast(const Color& a, const Color& b) {
  const double darker = std::min(Luminance(a), Luminance(b));
  const double lighter = std::max(Luminance(a), Luminance(b));
  return (lighter + 0.05) / (darker + 0.05);
}

Color TextColor(const Color& background) {
  return Contrast(background, kWhite) > Contrast(background, kBlack) ? kWhite : kBlack;
}

std::string EscapeXml(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    switch (c) {
      case '&':
        escaped += "&amp;";
        break;
      case '<':
        escaped += "&lt;";
        break;
      case '>':
        escaped += "&gt;";
        break;
      case '"':
        escaped += "&quot;";
        break;
      default:
        // XML has no control characters, not even escaped.
        escaped += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return escaped;
}

std::string SvgRect(const Box& box, std::string_view attributes, std::string_view tooltip) {
  const std::string open = fmt::format(R"(<rect x="{}" y="{}" width="{}" height="{}" {})", box.x,
                                       box.y, box.width, box.height, attributes);
  if (tooltip.empty()) return open + "/>\n";
  return fmt::format("{}><title>{}</title></rect>\n", open, EscapeXml(tooltip));
}

std::string SvgDocument(double width, double height, std::string_view content) {
  return fmt::format(R"(<svg xmlns="http://www.w3.org/2000/svg" width="{0}" height="{1}" )"
                     R"(viewBox="0 0 {0} {1}" font-family="Helvetica, Arial, sans-serif">)"
                     "\n",
                     width, height) +
         SvgRect({.width = width, .height = height}, R"(fill="white")") + std::string(content) +
         "</svg>\n";
}

std::string SvgText(double x, double y, const TextStyle& style, std::string_view text) {
  const std::string turn =
      style.vertical ? fmt::format(R"x( transform="rotate(-90 {} {})")x", x, y) : std::string();
  const char* weight = style.bold ? R"( font-weight="bold")" : "";
  return fmt::format(R"x(<text x="{}" y="{}" font-size="{}" text-anchor="{}" fill="{}"{}{}>)x", x,
                     y, style.size, style.anchor, style.color.Hex(), weight, turn) +
         EscapeXml(text) + "</text>\n";
}

}  // namespace penstock::train
