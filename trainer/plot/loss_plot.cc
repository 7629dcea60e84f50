#include "trainer/plot/loss_plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/xml_text.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

// Sizes in pixels.
constexpr double kWidth = 960;
constexpr double kHeight = 540;
constexpr double kLeft = 70;
constexpr double kRight = 24;
constexpr double kTop = 54;
constexpr double kBottom = 56;
constexpr size_t kMostPoints = 2000;
constexpr int kTicks = 8;            // about as many on an axis
constexpr double kSmoothing = 0.02;  // of the steps: the window of the smoothed line

// Okabe and Ito's palette, told apart by colour-blind readers too.
constexpr char kTrainColor[] = "#0072B2";
constexpr char kValidationColor[] = "#D55E00";
constexpr char kUnigramColor[] = "#6b6b6b";

// A value outside is no loss but an accident; drawn, it would flatten all others.
constexpr double kLargest = 1e9;
constexpr double kSmallestOnLogScale = 1e-9;

bool Drawable(double loss, bool log_scale) {
  return std::fabs(loss) <= kLargest && (!log_scale || loss >= kSmallestOnLogScale);
}

// A step of 1, 2 or 5 times a power of ten that cuts `range` into at most `ticks`.
double TickStep(double range, int ticks) {
  double rough = range / ticks;
  double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (double factor : {1.0, 2.0, 5.0}) {
    if (power * factor >= rough) return power * factor;
  }
  return power * 10;
}

class Axis {
 public:
  Axis(double low, double high, bool log_scale, double tick_step_min, double pixel_low,
       double pixel_high)
      : low_(low),
        high_(high),
        log_(log_scale),
        tick_step_min_(tick_step_min),
        pixel_low_(pixel_low),
        pixel_high_(pixel_high) {}
  double Pixel(double value) const {
    double part =
        log_ ? std::log(value / low_) / std::log(high_ / low_) : (value - low_) / (high_ - low_);
    return pixel_low_ + std::clamp(part, -1.0, 2.0) * (pixel_high_ - pixel_low_);
  }
  std::vector<double> Ticks() const {
    return log_ && high_ / low_ > 4 ? LogTicks() : LinearTicks();
  }

 private:
  // 1, 2 and 5 times the powers of ten; over many decades every so many powers only.
  std::vector<double> LogTicks() const {
    const int first = static_cast<int>(std::floor(std::log10(low_)));
    const int last = static_cast<int>(std::floor(std::log10(high_)));
    const int stride = 1 + (last - first) / kTicks;
    std::vector<double> ticks;
    for (int power = first; power <= last; power += stride) {
      for (double factor : {1.0, 2.0, 5.0}) {
        double value = factor * std::pow(10.0, power);
        bool wanted = factor == 1 || stride == 1;
        if (wanted && value >= low_ && value <= high_) ticks.push_back(value);
      }
    }
    return ticks;
  }
  std::vector<double> LinearTicks() const {
    const double step = std::max(TickStep(high_ - low_, kTicks), tick_step_min_);
    const double first = std::ceil(low_ / step - 1e-9);
    std::vector<double> ticks;
    for (int i = 0; i <= kTicks && (first + i) * step <= high_ + 1e-9 * step; ++i) {
      ticks.push_back((first + i) * step);
    }
    return ticks;
  }

  double low_, high_;
  bool log_;
  double tick_step_min_;  // of a linear axis
  double pixel_low_, pixel_high_;
};

std::string TickLabel(double value) {
  double size = std::fabs(value);
  if (size < 1e-12) return "0";
  if (size >= 1e6) return absl::StrFormat("%gM", value / 1e6);
  if (size >= 1e4) return absl::StrFormat("%gk", value / 1e3);
  return absl::StrFormat("%g", std::round(value * 1e6) / 1e6);
}

// At most about kMostPoints: of each group the lowest and the highest, in their order. A gap stays.
std::vector<PlotPoint> Decimate(const std::vector<PlotPoint>& points, bool log_scale) {
  if (points.size() <= kMostPoints) return points;
  const size_t group = (points.size() * 2 + kMostPoints - 1) / kMostPoints;
  std::vector<PlotPoint> kept;
  for (size_t begin = 0; begin < points.size(); begin += group) {
    size_t end = std::min(begin + group, points.size());
    size_t low = end;
    size_t high = end;
    for (size_t i = begin; i < end; ++i) {
      if (!Drawable(points[i].loss, log_scale)) continue;
      if (low == end || points[i].loss < points[low].loss) low = i;
      if (high == end || points[i].loss > points[high].loss) high = i;
    }
    if (low == end) {
      kept.push_back({points[begin].step, std::numeric_limits<double>::quiet_NaN()});
      continue;
    }
    kept.push_back(points[std::min(low, high)]);
    if (low != high) kept.push_back(points[std::max(low, high)]);
  }
  return kept;
}

// Mean of the points around each, between gaps. The window grows from the start, so that the steep
// beginning is not drawn late, and is cut off at the end.
std::vector<PlotPoint> Smooth(const std::vector<PlotPoint>& points, bool log_scale) {
  const auto half = static_cast<size_t>(kSmoothing / 2 * static_cast<double>(points.size()));
  std::vector<PlotPoint> smooth = points;
  std::vector<double> sums(points.size() + 1);  // of the points before each
  size_t begin = 0;                             // of the stretch without a gap
  for (size_t end = 0; end <= points.size(); ++end) {
    if (end < points.size() && Drawable(points[end].loss, log_scale)) {
      sums[end + 1] = sums[end] + points[end].loss;
      continue;
    }
    for (size_t i = begin; i < end; ++i) {
      const size_t reach = std::min(half, i - begin);
      const size_t stop = std::min(end, i + reach + 1);
      smooth[i].loss = (sums[stop] - sums[i - reach]) / static_cast<double>(stop - (i - reach));
    }
    if (end < points.size()) sums[end + 1] = sums[end];
    begin = end + 1;
  }
  return smooth;
}

struct Bounds {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Include(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

class Picture {
 public:
  explicit Picture(const LossPlot& plot) : plot_(plot), x_(MakeX()), y_(MakeY()) {}

  std::string Render() {
    absl::StrAppendFormat(&svg_,
                          "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
                          "viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" font-size=\"13\">\n"
                          "<rect width=\"%g\" height=\"%g\" fill=\"white\"/>\n",
                          kWidth, kHeight, kWidth, kHeight, kWidth, kHeight);
    absl::StrAppendFormat(&svg_,
                          "<clipPath id=\"area\"><rect x=\"%g\" y=\"%g\" width=\"%g\" "
                          "height=\"%g\"/></clipPath>\n",
                          kLeft, kTop, kWidth - kLeft - kRight, kHeight - kTop - kBottom);
    DrawAxes();
    svg_ += "<g clip-path=\"url(#area)\">\n";
    if (plot_.unigram && Drawable(*plot_.unigram, plot_.log_scale)) {
      double y = y_.Pixel(*plot_.unigram);
      absl::StrAppendFormat(&svg_,
                            "<path d=\"M%g %.1fH%g\" stroke=\"%s\" stroke-width=\"1.5\" "
                            "stroke-dasharray=\"7 5\"/>\n",
                            kLeft, y, kWidth - kRight, kUnigramColor);
    }
    DrawLine(Decimate(plot_.train, plot_.log_scale), kTrainColor, 1, 0.35);
    DrawLine(Decimate(Smooth(plot_.train, plot_.log_scale), plot_.log_scale), kTrainColor, 2.2, 1);
    DrawLine(Decimate(plot_.validation, plot_.log_scale), kValidationColor, 1.5, 1);
    DrawDots();
    svg_ += "</g>\n";
    DrawLegend();
    svg_ += "</svg>\n";
    return std::move(svg_);
  }

 private:
  Axis MakeX() const {
    Bounds bounds;
    for (const auto* points : {&plot_.train, &plot_.validation}) {
      for (const PlotPoint& point : *points) {
        if (std::isfinite(point.step)) bounds.Include(point.step);
      }
    }
    if (!(bounds.low <= bounds.high)) bounds.low = bounds.high = 0;
    if (bounds.low > 0 && bounds.low < 0.1 * bounds.high) bounds.low = 0;
    if (bounds.high - bounds.low < 1) bounds.high = bounds.low + 1;
    return {bounds.low, bounds.high, false, /*tick_step_min=*/1, kLeft, kWidth - kRight};
  }

  Axis MakeY() const {
    Bounds bounds;
    for (const auto* points : {&plot_.train, &plot_.validation}) {
      for (const PlotPoint& point : *points) {
        if (Drawable(point.loss, plot_.log_scale)) bounds.Include(point.loss);
      }
    }
    if (plot_.unigram && Drawable(*plot_.unigram, plot_.log_scale)) bounds.Include(*plot_.unigram);
    if (!(bounds.low <= bounds.high)) bounds = {1, 10};
    double low = bounds.low;
    double high = bounds.high;
    if (plot_.log_scale) {
      double margin = std::max(1.02, std::pow(high / low, 0.05));
      low /= margin;
      high *= margin;
    } else {
      double margin = std::max(0.05 * (high - low), 1e-6 * std::max(1.0, std::fabs(high)));
      low -= margin;
      high += margin;
    }
    return {low, high, plot_.log_scale, /*tick_step_min=*/0, kHeight - kBottom, kTop};
  }

  void Text(double x, double y, const std::string& attributes, const std::string& text) {
    absl::StrAppendFormat(&svg_, "<text x=\"%.1f\" y=\"%.1f\" %s>%s</text>\n", x, y, attributes,
                          XmlText(text));
  }

  void DrawAxes() {
    for (double tick : y_.Ticks()) {
      double y = y_.Pixel(tick);
      absl::StrAppendFormat(&svg_, "<path d=\"M%g %.1fH%g\" stroke=\"#e6e6e6\"/>\n", kLeft, y,
                            kWidth - kRight);
      Text(kLeft - 8, y + 4.5, "text-anchor=\"end\" fill=\"#333\"", TickLabel(tick));
    }
    for (double tick : x_.Ticks()) {
      double x = x_.Pixel(tick);
      absl::StrAppendFormat(&svg_, "<path d=\"M%.1f %gv5\" stroke=\"#333\"/>\n", x,
                            kHeight - kBottom);
      Text(x, kHeight - kBottom + 20, "text-anchor=\"middle\" fill=\"#333\"", TickLabel(tick));
    }
    absl::StrAppendFormat(&svg_, "<path d=\"M%g %gV%gH%g\" stroke=\"#333\" fill=\"none\"/>\n",
                          kLeft, kTop, kHeight - kBottom, kWidth - kRight);
    Text((kLeft + kWidth - kRight) / 2, kHeight - 14, "text-anchor=\"middle\" fill=\"#333\"",
         "step");
    double middle = (kTop + kHeight - kBottom) / 2;
    Text(18, middle,
         absl::StrFormat("text-anchor=\"middle\" fill=\"#333\" transform=\"rotate(-90 18 %.1f)\"",
                         middle),
         "loss (nats per token)");
    Text(kLeft, 24, "font-size=\"17\" font-weight=\"bold\" fill=\"#111\"", plot_.title);
  }

  void DrawLine(const std::vector<PlotPoint>& points, const char* color, double width,
                double opacity) {
    std::string path;
    bool pen_down = false;
    for (const PlotPoint& point : points) {
      if (!Drawable(point.loss, plot_.log_scale) || !std::isfinite(point.step)) {
        pen_down = false;
        continue;
      }
      absl::StrAppendFormat(&path, "%s%.1f %.1f", pen_down ? "L" : "M", x_.Pixel(point.step),
                            y_.Pixel(point.loss));
      if (!pen_down) path += "h0";  // with a round cap, a lonely point shows as a dot
      pen_down = true;
    }
    if (path.empty()) return;
    absl::StrAppendFormat(&svg_,
                          "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"%g\" "
                          "stroke-opacity=\"%g\" stroke-linejoin=\"round\" "
                          "stroke-linecap=\"round\"/>\n",
                          path, color, width, opacity);
  }

  void DrawDots() {
    if (plot_.validation.size() > 200) return;  // a line says as much
    for (const PlotPoint& point : plot_.validation) {
      if (!Drawable(point.loss, plot_.log_scale) || !std::isfinite(point.step)) continue;
      absl::StrAppendFormat(&svg_, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\" fill=\"%s\"/>\n",
                            x_.Pixel(point.step), y_.Pixel(point.loss), kValidationColor);
    }
  }

  // "name value" with the last value of each line, right of the title's line.
  void DrawLegend() {
    double x = kLeft;
    auto entry = [&](const char* color, const char* dash, const std::string& label) {
      absl::StrAppendFormat(&svg_,
                            "<path d=\"M%.1f 41h24\" stroke=\"%s\" stroke-width=\"2.5\"%s/>\n", x,
                            color, dash);
      Text(x + 30, 45.5, "fill=\"#333\"", label);
      x += 48 + 7.2 * static_cast<double>(label.size());
    };
    auto last = [&](const std::vector<PlotPoint>& points, const char* name) {
      for (auto point = points.rbegin(); point != points.rend(); ++point) {
        if (!std::isfinite(point->loss)) continue;
        return absl::StrFormat("%s %.4g", name, point->loss);
      }
      return std::string(name);
    };
    if (!plot_.train.empty()) entry(kTrainColor, "", last(plot_.train, "training"));
    if (!plot_.validation.empty()) {
      entry(kValidationColor, "", last(plot_.validation, "validation"));
    }
    if (plot_.unigram && std::isfinite(*plot_.unigram)) {
      entry(kUnigramColor, " stroke-dasharray=\"7 5\"",
            absl::StrFormat("unigram model %.4g", *plot_.unigram));
    }
    if (plot_.train.empty() && plot_.validation.empty()) {
      Text((kLeft + kWidth - kRight) / 2, (kTop + kHeight - kBottom) / 2,
           "text-anchor=\"middle\" fill=\"#777\"", "no step yet");
    }
  }

  const LossPlot& plot_;
  const Axis x_;
  const Axis y_;
  std::string svg_;
};

}  // namespace

std::string RenderLossSvg(const LossPlot& plot) { return Picture(plot).Render(); }

absl::Status WriteLossSvg(const std::string& path, const LossPlot& plot) {
  return WriteFileAtomically(path, RenderLossSvg(plot));
}

}  // namespace weft::train
