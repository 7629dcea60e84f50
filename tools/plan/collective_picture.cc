#include "tools/plan/collective_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/units.h"

namespace weft::plan {
namespace {

// Pixels.
constexpr double kWidth = 960, kHeight = 540;
constexpr double kLeft = 70, kRight = 190, kTop = 54, kBottom = 56;
constexpr double kLegendLine = 20;

// The axis of bandwidths ends so far below the best.
constexpr double kRange = 1e5;

// Okabe and Ito's palette, told apart by colour-blind readers too; then the same with dashes.
constexpr std::array<const char*, 7> kColours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                 "#E69F00", "#56B4E9", "#000000"};

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

struct Axes {
  double bytes_min = std::numeric_limits<double>::max(), bytes_max = 0;
  double busbw_min = std::numeric_limits<double>::max(), busbw_max = 0;

  double X(double bytes) const {
    const double part =
        bytes_max > bytes_min ? std::log(bytes / bytes_min) / std::log(bytes_max / bytes_min) : 0.5;
    return kLeft + part * (kWidth - kLeft - kRight);
  }
  double Y(double busbw) const {
    const double value = std::clamp(busbw, busbw_min, busbw_max);
    const double part = std::log(value / busbw_min) / std::log(busbw_max / busbw_min);
    return kHeight - kBottom - part * (kHeight - kTop - kBottom);
  }
};

bool Drawable(const Picture::Point& point) { return point.bytes > 0 && point.busbw > 0; }

// Whole decades of bandwidth.
Axes AxesOf(const Picture& picture) {
  Axes axes;
  for (const Picture::Line& line : picture.lines) {
    for (const Picture::Point& point : line.points) {
      if (!Drawable(point)) continue;
      axes.bytes_min = std::min(axes.bytes_min, point.bytes);
      axes.bytes_max = std::max(axes.bytes_max, point.bytes);
      axes.busbw_min = std::min(axes.busbw_min, point.busbw);
      axes.busbw_max = std::max(axes.busbw_max, point.busbw);
    }
  }
  if (axes.bytes_max == 0) return {.bytes_min = 1, .bytes_max = 2, .busbw_min = 1, .busbw_max = 10};
  axes.busbw_max = std::pow(10, std::ceil(std::log10(axes.busbw_max)));
  axes.busbw_min = std::max(axes.busbw_min, axes.busbw_max / kRange);
  axes.busbw_min = std::pow(10, std::floor(std::log10(axes.busbw_min)));
  if (axes.busbw_min >= axes.busbw_max) axes.busbw_min = axes.busbw_max / 10;
  return axes;
}

void DrawAxes(const Picture& picture, const Axes& axes, std::string& svg) {
  const double bottom = kHeight - kBottom, right = kWidth - kRight;
  for (double value = axes.busbw_min; value <= axes.busbw_max * 1.001; value *= 10) {
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
                          "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                          kLeft, axes.Y(value), right, axes.Y(value), kLeft - 8, axes.Y(value) + 4,
                          value);
  }
  std::vector<double> sizes;
  for (const Picture::Line& line : picture.lines) {
    for (const Picture::Point& point : line.points) {
      if (Drawable(point)) sizes.push_back(point.bytes);
    }
  }
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  const size_t stride = 1 + sizes.size() / 10;
  for (size_t i = 0; i < sizes.size(); i += stride) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n",
                          axes.X(sizes[i]), bottom + 20,
                          ToString(Bytes(static_cast<int64_t>(sizes[i]))));
  }
  absl::StrAppendFormat(&svg,
                        "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">size</text>\n"
                        "<text transform=\"translate(18 %g) rotate(-90)\" "
                        "text-anchor=\"middle\">%s bus bandwidth, GB/s</text>\n",
                        (kLeft + right) / 2, kHeight - 12, (kTop + bottom) / 2, picture.measure);
}

void DrawLine(const Picture::Line& line, size_t index, const Axes& axes, std::string& svg) {
  const char* colour = kColours[index % kColours.size()];
  const char* dash = index < kColours.size() ? "" : " stroke-dasharray=\"6 4\"";
  std::string points, rings;
  for (const Picture::Point& point : line.points) {
    if (!Drawable(point)) continue;
    absl::StrAppendFormat(&points, "%.1f,%.1f ", axes.X(point.bytes), axes.Y(point.busbw));
    if (!point.chosen) continue;
    absl::StrAppendFormat(&rings,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"6\" fill=\"white\" stroke=\"%s\" "
                          "stroke-width=\"2.5\"><title>%s, %s: %.3g GB/s, the planner's "
                          "choice</title></circle>\n",
                          axes.X(point.bytes), axes.Y(point.busbw), colour, Escaped(line.name),
                          ToString(Bytes(static_cast<int64_t>(point.bytes))), point.busbw);
  }
  const double y = kTop + kLegendLine * static_cast<double>(index + 1), x = kWidth - kRight + 16;
  absl::StrAppendFormat(
      &svg,
      "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"1.5\"%s/>\n%s"
      "<line x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\" stroke=\"%s\" stroke-width=\"2.5\"%s/>\n"
      "<text x=\"%g\" y=\"%g\">%s</text>\n",
      points, colour, dash, rings, x, y - 4, x + 24, y - 4, colour, dash, x + 30, y,
      Escaped(line.name));
}

}  // namespace

void Picture::Add(const std::string& name, double bytes, double busbw, bool chosen) {
  auto line =
      std::find_if(lines.begin(), lines.end(), [&](const Line& one) { return one.name == name; });
  if (line == lines.end()) line = lines.insert(lines.end(), {name, {}});
  line->points.push_back({bytes, busbw, chosen});
}

std::string DrawPicture(const Picture& picture) {
  const Axes axes = AxesOf(picture);
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
      "font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"%g\" height=\"%g\" "
      "fill=\"white\"/>\n<text x=\"%g\" y=\"26\" font-size=\"15\">%s</text>\n"
      "<text x=\"%g\" y=\"44\" fill=\"#555\">circles: what the planner chooses</text>\n",
      kWidth, kHeight, kWidth, kHeight, kWidth, kHeight, kLeft, Escaped(picture.title), kLeft);
  DrawAxes(picture, axes, svg);
  // In the order of names, so that colours do not change with the costs.
  std::vector<Picture::Line> lines = picture.lines;
  std::sort(lines.begin(), lines.end(),
            [](const Picture::Line& a, const Picture::Line& b) { return a.name < b.name; });
  for (size_t i = 0; i < lines.size(); ++i) DrawLine(lines[i], i, axes, svg);
  return svg + "</svg>\n";
}

}  // namespace weft::plan
