#include "trainer/plot/timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace weft::train {
namespace {

// Sizes in pixels.
constexpr double kWidth = 1200, kLeft = 180, kRight = 16, kTop = 58, kBottom = 30;
constexpr double kLane = 20, kThinLane = 9, kGap = 2, kRankGap = 10;
// Spans narrower than this are drawn as one with neighbours of their color, closer than a gap that
// is seen: thousands of short exchanges would make the file large.
constexpr double kNarrow = 1, kSeenGap = 0.5;

// Okabe and Ito's palette, told apart by colour-blind readers too.
struct Color {
  const char* name;
  const char* color;
};
constexpr Color kColors[] = {
    {"forward", "#56B4E9"},   {"backward", "#0072B2"}, {"weight gradients", "#009E73"},
    {"optimizer", "#CC79A7"}, {"waiting", "#D55E00"},  {"communication", "#999999"},
    {"bubble", "#E69F00"}};

const char* ColorOf(const TimelineSpan& span) {
  if (span.name == "bubble") return "#E69F00";
  if (span.track != 0) return "#999999";
  if (absl::StartsWith(span.name, "wait_")) return "#D55E00";
  for (const Color& color : kColors) {
    if (span.name == color.name) return color.color;
  }
  return "#F0E442";
}

struct Window {
  double begin = std::numeric_limits<double>::infinity();
  double end = 0;
  int64_t first_step = 0, last_step = 0;
  double Pixel(double time) const {
    const double part = (std::clamp(time, begin, end) - begin) / (end - begin);
    return kLeft + part * (kWidth - kLeft - kRight);
  }
};

Window WindowOf(const std::vector<TimelineSpan>& spans, int64_t steps) {
  Window window;
  for (const TimelineSpan& span : spans) window.last_step = std::max(window.last_step, span.step);
  window.first_step = window.last_step - steps + 1;
  double updated = 0;
  for (const TimelineSpan& span : spans) {
    if (span.step < window.first_step || span.track != 0) continue;
    window.begin = std::min(window.begin, span.start);
    window.end = std::max(window.end, span.start + span.duration);
    if (span.name == "optimizer") updated = std::max(updated, span.start + span.duration);
  }
  // A measurement of the validation loss behind the last step is not shown.
  if (updated > 0) window.end = updated;
  return window;
}

void Text(std::string& svg, double x, double y, const char* anchor, const std::string& text) {
  absl::StrAppendFormat(&svg, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\">%s</text>\n", x, y,
                        anchor, text);
}

// One rectangle: a span, or several narrow ones.
struct Drawn {
  TimelineSpan span;
  int count = 1;
};

// `lane` in the order of drawing.
std::vector<Drawn> Coalesce(const Window& window, const std::vector<const TimelineSpan*>& lane) {
  std::vector<Drawn> drawn;
  for (const TimelineSpan* span : lane) {
    const double end = span->start + span->duration;
    if (!drawn.empty()) {
      Drawn& last = drawn.back();
      const double last_end = last.span.start + last.span.duration;
      const double gap = window.Pixel(span->start) - window.Pixel(last_end);
      const bool is_narrow = window.Pixel(end) - window.Pixel(span->start) < kNarrow;
      if (is_narrow && gap >= 0 && gap < kSeenGap && last.span.step == span->step &&
          std::string(ColorOf(last.span)) == ColorOf(*span)) {
        last.span.duration = end - last.span.start;
        ++last.count;
        continue;
      }
    }
    drawn.push_back({*span});
  }
  return drawn;
}

void Rectangle(std::string& svg, const Window& window, const Drawn& drawn, double top,
               double height) {
  const TimelineSpan& span = drawn.span;
  const double left = window.Pixel(span.start), right = window.Pixel(span.start + span.duration);
  const std::string what =
      drawn.count == 1 ? span.name : absl::StrCat(span.name, " and ", drawn.count - 1, " more");
  absl::StrAppendFormat(&svg,
                        "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\" fill=\"%s\">"
                        "<title>rank %d, step %d: %s, %.3f ms</title></rect>\n",
                        left, top, std::max(0.1, right - left), height, ColorOf(span), span.rank,
                        span.step, what, span.duration / 1e3);
}

void Head(std::string& svg, const Window& window) {
  Text(svg, kLeft, 20, "start",
       absl::StrFormat("Steps %d to %d: %.1f ms", std::max<int64_t>(1, window.first_step),
                       window.last_step, (window.end - window.begin) / 1e3));
  double x = kLeft;
  for (const Color& color : kColors) {
    absl::StrAppendFormat(&svg,
                          "<rect x=\"%.1f\" y=\"32\" width=\"12\" height=\"12\" fill=\"%s\"/>\n", x,
                          color.color);
    Text(svg, x + 16, 42, "start", color.name);
    x += 142;
  }
}

}  // namespace

absl::StatusOr<std::vector<TimelineSpan>> ParseTimeline(const std::vector<std::string>& parts) {
  std::vector<TimelineSpan> spans;
  for (const std::string& part : parts) {
    const nlohmann::json events =
        nlohmann::json::parse(absl::StrCat("[", part, "]"), nullptr, /*allow_exceptions=*/false);
    if (!events.is_array()) return absl::InvalidArgumentError("a part of a trace is no JSON");
    for (const nlohmann::json& event : events) {
      if (event.value("ph", "") != "X") continue;
      spans.push_back({event.value("pid", 0), event.value("tid", 0), event.value("name", ""),
                       event.value("ts", 0.0), event.value("dur", 0.0),
                       event.contains("args") ? event["args"].value("step", int64_t{-1}) : -1});
    }
  }
  return spans;
}

std::string DrawTimeline(const std::vector<TimelineSpan>& spans,
                         const std::vector<std::string>& tracks, int64_t steps) {
  const Window window = WindowOf(spans, steps);
  if (!(window.begin < window.end)) return std::string();
  // By rank and track, waits behind what they interrupt.
  std::map<int, std::map<int, std::vector<const TimelineSpan*>>> lanes;
  for (const TimelineSpan& span : spans) {
    if (span.step < window.first_step || span.rank >= kTimelineRanksMost) continue;
    if (span.start >= window.end || std::cmp_greater_equal(span.track, tracks.size())) continue;
    lanes[span.rank][span.track].push_back(&span);
  }
  std::string body;
  Head(body, window);
  double y = kTop;
  for (auto& [rank, by_track] : lanes) {
    Text(body, 8, y + 14, "start", absl::StrCat("rank ", rank));
    for (auto& [track, lane] : by_track) {
      const double height = track == 0 ? kLane : kThinLane;
      std::stable_sort(lane.begin(), lane.end(), [](const auto* a, const auto* b) {
        const bool a_waits = absl::StartsWith(a->name, "wait_");
        const bool b_waits = absl::StartsWith(b->name, "wait_");
        return a_waits != b_waits ? b_waits : a->start < b->start;
      });
      for (const Drawn& drawn : Coalesce(window, lane)) Rectangle(body, window, drawn, y, height);
      if (track != 0) {
        Text(body, kLeft - 6, y + 8, "end", tracks[static_cast<size_t>(track)]);
      }
      y += height + kGap;
    }
    y += kRankGap;
  }
  return absl::StrFormat(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" "
             "font-family=\"sans-serif\" font-size=\"11\" fill=\"#222\">\n"
             "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
             kWidth, y + kBottom - kRankGap) +
         body + "</svg>\n";
}

}  // namespace weft::train
