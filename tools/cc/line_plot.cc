#include "tools/cc/line_plot.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/xml_text.h"

namespace weft::cc {
namespace {

constexpr double kWidth = 760, kHeight = 340, kLeft = 64, kRight = 170, kTop = 34, kBottom = 46;
constexpr size_t kMostPoints = 400;
constexpr int kTicks = 6;
// Okabe and Ito's palette, told apart by colour-blind readers too.
constexpr std::array kColors = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                "#E69F00", "#56B4E9", "#000000", "#6b6b6b"};

// A step of 1, 2 or 5 times a power of ten that cuts `range` into at most kTicks.
double TickStep(double range) {
  double rough = range / kTicks, power = std::pow(10.0, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= rough) return power * factor;
  }
  return power * 10;
}

std::vector<std::pair<double, double>> Thin(const Line& line) {
  size_t group = (line.points.size() + kMostPoints - 1) / kMostPoints;
  if (group <= 1) return line.points;
  std::vector<std::pair<double, double>> kept;
  for (size_t begin = 0; begin < line.points.size(); begin += group) {
    size_t end = std::min(begin + group, line.points.size());
    double x = 0, y = 0;
    for (size_t i = begin; i < end; ++i) {
      x += line.points[i].first;
      y += line.points[i].second;
    }
    auto count = static_cast<double>(end - begin);
    kept.emplace_back(x / count, y / count);
  }
  return kept;
}

struct Frame {
  double x_min = 0, x_max = 1, y_max = 1;
  double X(double x) const {
    return kLeft + (x - x_min) / (x_max - x_min) * (kWidth - kLeft - kRight);
  }
  double Y(double y) const {
    return kHeight - kBottom - std::clamp(y / y_max, 0.0, 1.02) * (kHeight - kTop - kBottom);
  }
};

Frame FrameOf(const LinePlot& plot) {
  Frame frame;
  bool is_first = true;
  double y_max = 0;
  for (const Line& line : plot.lines) {
    for (auto [x, y] : line.points) {
      frame.x_min = is_first ? x : std::min(frame.x_min, x);
      frame.x_max = is_first ? x : std::max(frame.x_max, x);
      is_first = false;
      y_max = std::max(y_max, y);
    }
  }
  if (frame.x_max <= frame.x_min) frame.x_max = frame.x_min + 1;
  frame.y_max = plot.y_max > 0 ? plot.y_max : std::max(y_max * 1.08, 1e-9);
  return frame;
}

void DrawAxes(const LinePlot& plot, const Frame& frame, std::string& svg) {
  absl::StrAppendFormat(&svg, "<text x='%g' y='20' font-size='15'>%s</text>\n", kLeft,
                        XmlText(plot.title));
  double step = TickStep(frame.y_max);
  for (double y = 0; y <= frame.y_max; y += step) {
    absl::StrAppendFormat(&svg,
                          "<path d='M%.1f %.1fH%.1f' stroke='#ddd'/><text x='%.1f' y='%.1f' "
                          "text-anchor='end'>%g</text>\n",
                          kLeft, frame.Y(y), kWidth - kRight, kLeft - 6, frame.Y(y) + 4,
                          std::round(y * 1e6) / 1e6);
  }
  step = TickStep(frame.x_max - frame.x_min);
  for (double x = std::ceil(frame.x_min / step - 1e-9) * step; x <= frame.x_max * (1 + 1e-9);
       x += step) {
    absl::StrAppendFormat(&svg, "<text x='%.1f' y='%g' text-anchor='middle'>%g</text>\n",
                          frame.X(x), kHeight - kBottom + 16, std::round(x * 1e6) / 1e6 + 0.0);
  }
  absl::StrAppendFormat(&svg, "<text x='%g' y='%g' text-anchor='middle'>%s</text>\n",
                        (kLeft + kWidth - kRight) / 2, kHeight - 10, XmlText(plot.x_name));
  absl::StrAppendFormat(
      &svg, "<text transform='translate(14,%g) rotate(-90)' text-anchor='middle'>%s</text>\n",
      (kTop + kHeight - kBottom) / 2, XmlText(plot.y_name));
}

}  // namespace

std::string RenderSvg(const LinePlot& plot) {
  Frame frame = FrameOf(plot);
  std::string svg = absl::StrFormat(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %g %g' font-family='sans-serif' "
      "font-size='12'>\n<rect width='100%%' height='100%%' fill='#fff'/>\n",
      kWidth, kHeight);
  DrawAxes(plot, frame, svg);
  for (size_t i = 0; i < plot.lines.size(); ++i) {
    const Line& line = plot.lines[i];
    const char* color = kColors[i % kColors.size()];
    const char* dash = line.dashed ? " stroke-dasharray='6 4'" : "";
    absl::StrAppendFormat(&svg, "<path fill='none' stroke='%s' stroke-width='1.6'%s d='", color,
                          dash);
    char command = 'M';
    for (auto [x, y] : Thin(line)) {
      absl::StrAppendFormat(&svg, "%c%.1f %.1f", command, frame.X(x), frame.Y(y));
      command = 'L';
    }
    double y = kTop + 12 + 18 * static_cast<double>(i);
    absl::StrAppendFormat(
        &svg,
        "'/>\n<path d='M%g %gh20' stroke='%s' stroke-width='2'%s/><text x='%g' y='%g'>%s</text>\n",
        kWidth - kRight + 10, y, color, dash, kWidth - kRight + 36, y + 4, XmlText(line.name));
  }
  svg += "</svg>\n";
  return svg;
}

}  // namespace weft::cc
