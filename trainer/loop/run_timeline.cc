#include "trainer/loop/run_timeline.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/log.h"
#include "base/status.h"
#include "base/trace.h"
#include "trainer/files/file.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/plot/timeline.h"

namespace weft::train {
namespace {

constexpr int64_t kTimelineSteps = 2;  // that timeline.svg shows

}  // namespace

absl::StatusOr<RunTimeline> GatherTimeline(StepTrace& trace, int64_t steps, Group& group) {
  // Steps that are whole on every rank.
  const int64_t wanted = trace.wanted_step();
  int64_t first = trace.whole_step();
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> parts, group.Gather(absl::StrCat(first)));
  for (const std::string& part : parts) {
    int64_t of_rank = 0;
    if (absl::SimpleAtoi(part, &of_rank)) first = std::max(first, of_rank);
  }
  const uint64_t lost = trace.SpansBefore(first);
  WEFT_ASSIGN_OR_RETURN(parts,
                        group.GatherOnFirst(ChromeEvents(trace.trace(), group.rank(), first)));
  std::string other;
  if (lost > 0) {
    other = absl::StrFormat(R"({"first_step":%d,"first_step_wanted":%d,"lost_spans_of_rank_0":%d})",
                            first, wanted, lost);
  }
  if (lost > 0 && group.rank() == 0) {
    WEFT_LOG_WARN("trace.json begins with step ", first, " and not with step ", wanted,
                  " (log.trace_steps = ", steps, "): a step has up to ", trace.spans_of_a_step(),
                  " spans, and a rank keeps ", trace.bytes().count() >> 20, " MiB of them; ", lost,
                  " older ones of rank 0 are lost");
  }
  return RunTimeline{std::move(parts), std::move(other)};
}

absl::Status WriteTimeline(const RunTimeline& timeline, const std::string& folder) {
  WEFT_RETURN_IF_ERROR(WriteFileAtomically(absl::StrCat(folder, "/trace.json"),
                                           MergeChromeJson(timeline.parts, timeline.other)));
  WEFT_ASSIGN_OR_RETURN(std::vector<TimelineSpan> spans, ParseTimeline(timeline.parts));
  // The tracks behind the bubble's have what the others show.
  std::vector<std::string> tracks = TraceTrackNames();
  tracks.resize(kBubbleTrack + 1);
  const std::string picture = DrawTimeline(spans, tracks, kTimelineSteps);
  return picture.empty() ? absl::OkStatus()
                         : WriteFileAtomically(absl::StrCat(folder, "/timeline.svg"), picture);
}

}  // namespace weft::train
