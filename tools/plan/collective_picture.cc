#include "tools/plan/collective_picture.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"
#include "base/xml_text.h"

namespace weft::plan {
namespace {

// The axis of bandwidths ends so far below the best.
constexpr double kRange = 1e5;

// Okabe and Ito's palette, told apart by colour-blind readers too; then the same with dashes.
constexpr std::array<const char*, 7> kColours = {"#0072B2", "#D55E00", "#009E73", "#CC79A7",
                                                 "#E69F00", "#56B4E9", "#000000"};

// Pixels.
struct Layout {
  size_t columns;
  double plot_width, plot_height;  // of a panel
  double above, below, before;     // around a plot: titles, sizes, bandwidths
  double gap, head = 54, legend = 190, font = 12;
  double ring, stroke;  // radius of a circle, width of a line
  size_t sizes_most;    // named on the axis
};
constexpr Layout kOne{.columns = 1,
                      .plot_width = 700,
                      .plot_height = 430,
                      .above = 0,
                      .below = 56,
                      .before = 70,
                      .gap = 0,
                      .ring = 6,
                      .stroke = 1.5,
                      .sizes_most = 10};
constexpr Layout kMany{.columns = 3,
                       .plot_width = 300,
                       .plot_height = 210,
                       .above = 42,
                       .below = 26,
                       .before = 44,
                       .gap = 12,
                       .head = 60,
                       .legend = 170,
                       .font = 11,
                       .ring = 4,
                       .stroke = 1.25,
                       .sizes_most = 5};
constexpr double kLegendLine = 20;

struct Range {
  double bytes_min = std::numeric_limits<double>::max(), bytes_max = 0;
  double busbw_min = std::numeric_limits<double>::max(), busbw_max = 0;
};

// A panel's plot, and the ranges of its axes.
struct Axes : Range {
  double left = 0, top = 0, width = 0, height = 0;

  double right() const { return left + width; }
  double bottom() const { return top + height; }
  double X(double bytes) const {
    const double part =
        bytes_max > bytes_min ? std::log(bytes / bytes_min) / std::log(bytes_max / bytes_min) : 0.5;
    return left + part * width;
  }
  double Y(double busbw) const {
    const double value = std::clamp(busbw, busbw_min, busbw_max);
    return bottom() - std::log(value / busbw_min) / std::log(busbw_max / busbw_min) * height;
  }
};

bool Drawable(const Picture::Point& point) { return point.bytes > 0 && point.busbw > 0; }

template <typename Visit>
void ForEachPoint(absl::Span<const Picture> pictures, const Visit& visit) {
  for (const Picture& picture : pictures) {
    for (const Picture::Line& line : picture.lines) {
      for (const Picture::Point& point : line.points) {
        if (Drawable(point)) visit(point);
      }
    }
  }
}

// Whole decades of bandwidth.
Range RangeOf(absl::Span<const Picture> pictures) {
  Range range;
  ForEachPoint(pictures, [&](const Picture::Point& point) {
    range.bytes_min = std::min(range.bytes_min, point.bytes);
    range.bytes_max = std::max(range.bytes_max, point.bytes);
    range.busbw_min = std::min(range.busbw_min, point.busbw);
    range.busbw_max = std::max(range.busbw_max, point.busbw);
  });
  if (range.bytes_max == 0) {
    return {.bytes_min = 1, .bytes_max = 2, .busbw_min = 1, .busbw_max = 10};
  }
  range.busbw_max = std::pow(10, std::ceil(std::log10(range.busbw_max)));
  range.busbw_min = std::max(range.busbw_min, range.busbw_max / kRange);
  range.busbw_min = std::pow(10, std::floor(std::log10(range.busbw_min)));
  if (range.busbw_min >= range.busbw_max) range.busbw_min = range.busbw_max / 10;
  return range;
}

// Rising, each once.
std::vector<double> SizesOf(absl::Span<const Picture> pictures) {
  std::vector<double> sizes;
  ForEachPoint(pictures, [&](const Picture::Point& point) { sizes.push_back(point.bytes); });
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  return sizes;
}

// In the order of names, so that colours do not change with the costs.
std::vector<std::string> NamesOf(absl::Span<const Picture> pictures) {
  std::vector<std::string> names;
  for (const Picture& picture : pictures) {
    for (const Picture::Line& line : picture.lines) names.push_back(line.name);
  }
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

std::string Stroke(size_t index) {
  return absl::StrFormat("stroke=\"%s\"%s", kColours[index % kColours.size()],
                         index < kColours.size() ? "" : " stroke-dasharray=\"6 4\"");
}

void DrawAxes(const std::vector<double>& sizes, const Layout& layout, const Axes& axes,
              std::string& svg) {
  for (double value = axes.busbw_min; value <= axes.busbw_max * 1.001; value *= 10) {
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
                          "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                          axes.left, axes.Y(value), axes.right(), axes.Y(value), axes.left - 6,
                          axes.Y(value) + 4, value);
  }
  const size_t stride = 1 + sizes.size() / layout.sizes_most;
  for (size_t i = 0; i < sizes.size(); i += stride) {
    absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n",
                          axes.X(sizes[i]), axes.bottom() + layout.font + 6,
                          ToString(Bytes(static_cast<int64_t>(sizes[i]))));
  }
}

void DrawLine(const Picture::Line& line, size_t index, const Layout& layout, const Axes& axes,
              std::string& svg) {
  std::string points, rings;
  for (const Picture::Point& point : line.points) {
    if (!Drawable(point)) continue;
    absl::StrAppendFormat(&points, "%.1f,%.1f ", axes.X(point.bytes), axes.Y(point.busbw));
    if (!point.chosen) continue;
    absl::StrAppendFormat(&rings,
                          "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%g\" fill=\"white\" stroke=\"%s\" "
                          "stroke-width=\"%g\"><title>%s, %s: %.3g GB/s, the planner's "
                          "choice</title></circle>\n",
                          axes.X(point.bytes), axes.Y(point.busbw), layout.ring,
                          kColours[index % kColours.size()], layout.stroke + 1, XmlText(line.name),
                          ToString(Bytes(static_cast<int64_t>(point.bytes))), point.busbw);
  }
  absl::StrAppendFormat(&svg, "<polyline points=\"%s\" fill=\"none\" %s stroke-width=\"%g\"/>\n%s",
                        points, Stroke(index), layout.stroke, rings);
}

void DrawLegend(const std::vector<std::string>& names, double x, double top, std::string& svg) {
  for (size_t i = 0; i < names.size(); ++i) {
    const double y = top + kLegendLine * static_cast<double>(i + 1);
    absl::StrAppendFormat(&svg,
                          "<line x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\" %s "
                          "stroke-width=\"2.5\"/>\n<text x=\"%g\" y=\"%g\">%s</text>\n",
                          x, y - 4, x + 24, y - 4, Stroke(i), x + 30, y, XmlText(names[i]));
  }
}

// What stands above a panel's plot.
void DrawPanelTitle(const Picture& picture, const Axes& axes, std::string& svg) {
  absl::StrAppendFormat(&svg,
                        "<text x=\"%g\" y=\"%g\" font-weight=\"bold\">%s</text>\n<text x=\"%g\" "
                        "y=\"%g\" font-size=\"10\" fill=\"#555\">%s</text>\n",
                        axes.left, axes.top - 22, XmlText(picture.ranks), axes.left, axes.top - 8,
                        XmlText(picture.fabric));
}

}  // namespace

void Picture::Add(const std::string& name, double bytes, double busbw, bool chosen) {
  auto line =
      std::find_if(lines.begin(), lines.end(), [&](const Line& one) { return one.name == name; });
  if (line == lines.end()) line = lines.insert(lines.end(), {name, {}});
  line->points.push_back({bytes, busbw, chosen});
}

std::string DrawPictures(absl::Span<const Picture> pictures) {
  const bool one = pictures.size() == 1;
  const Layout& layout = one ? kOne : kMany;
  const size_t columns = std::min(layout.columns, pictures.size());
  const size_t rows = (pictures.size() + columns - 1) / columns;
  const double cell_width = layout.before + layout.plot_width + layout.gap;
  const double cell_height = layout.above + layout.plot_height + layout.below;
  const double across = cell_width * static_cast<double>(columns);
  const double width = across + layout.legend;
  const double height = layout.head + cell_height * static_cast<double>(rows) + (one ? 0 : 24);
  const std::string bandwidth = absl::StrCat(pictures[0].measure, " bus bandwidth");
  const std::string title = absl::StrCat(
      pictures[0].kind, ": ", one ? pictures[0].group : absl::StrCat(bandwidth, ", GB/s, by size"));
  std::string svg = absl::StrFormat(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" viewBox=\"0 0 %g %g\" "
      "font-family=\"sans-serif\" font-size=\"%g\">\n<rect width=\"%g\" height=\"%g\" "
      "fill=\"white\"/>\n<text x=\"%g\" y=\"26\" font-size=\"15\">%s</text>\n"
      "<text x=\"%g\" y=\"44\" fill=\"#555\">circles: what the planner chooses</text>\n",
      width, height, width, height, layout.font, width, height, layout.before, XmlText(title),
      layout.before);
  const std::vector<std::string> names = NamesOf(pictures);
  const std::vector<double> sizes = SizesOf(pictures);
  Axes axes{RangeOf(pictures)};
  axes.width = layout.plot_width, axes.height = layout.plot_height;
  for (size_t i = 0; i < pictures.size(); ++i) {
    axes.left = cell_width * static_cast<double>(i % columns) + layout.before;
    const size_t row = i / columns;
    axes.top = layout.head + cell_height * static_cast<double>(row) + layout.above;
    if (!one) DrawPanelTitle(pictures[i], axes, svg);
    DrawAxes(sizes, layout, axes, svg);
    for (const Picture::Line& line : pictures[i].lines) {
      const auto at = std::lower_bound(names.begin(), names.end(), line.name);
      DrawLine(line, static_cast<size_t>(at - names.begin()), layout, axes, svg);
    }
  }
  DrawLegend(names, across + 16, layout.head, svg);
  if (one) {
    absl::StrAppendFormat(&svg,
                          "<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">size</text>\n"
                          "<text transform=\"translate(18 %g) rotate(-90)\" "
                          "text-anchor=\"middle\">%s, GB/s</text>\n",
                          (axes.left + axes.right()) / 2, height - 12,
                          (axes.top + axes.bottom()) / 2, bandwidth);
  }
  return svg + "</svg>\n";
}

}  // namespace weft::plan
