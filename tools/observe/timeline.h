// The rings of a job's ranks as one timeline on one estimated clock, and what is written from it.
//
// Clocks: a collective that everybody takes part in ends nowhere before it has begun everywhere,
// and a message is not received before it is sent. Each such pair of calls on two hosts bounds the
// difference of their clocks; the middle of the narrowest bounds is taken, and wall clocks are not
// looked at. Ranks of one host have one clock; a second machine of its name is "NAME (2)".
#ifndef WEFT_TOOLS_OBSERVE_TIMELINE_H_
#define WEFT_TOOLS_OBSERVE_TIMELINE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/observe/diagnose.h"
#include "tools/observe/job_view.h"

namespace weft::observe {

struct TimelineSpan {
  std::string name, group;  // group "" : a phase
  int64_t start_ns = 0, end_ns = 0;
  bool done = true;     // false: it was under way when the ring was read, and ends there
  int64_t number = -1;  // step of a phase; sequence of a collective; tag of a message
  int64_t bytes = -1;
  int peer = -1;       // of a message
  uint64_t count = 0;  // elements
  uint8_t type = 0, code = 0;
  bool is_phase() const { return group.empty(); }
  bool is_message() const { return peer >= 0; }
};

struct TimelineRank {
  int rank = 0;
  std::string host;
  int64_t pid = 0;
  uint64_t lost = 0;                // records that the ring did not hold any more
  std::vector<TimelineSpan> spans;  // by start
};

struct Timeline {
  std::string job, mesh;
  int world_size = 0;
  std::map<std::string, std::vector<int>> groups;
  std::vector<TimelineRank> ranks;                            // by rank
  std::map<std::string, std::pair<int64_t, int64_t>> clocks;  // by host: ns added; give or take
};

// The timeline of the files that a Source names. Times are those of the lowest rank's host.
absl::StatusOr<Timeline> ReadTimeline(const JobView& view, const std::vector<std::string>& files);

// By host: what is added to its times so that they are those of `reference`, and give or take how
// much. A host that no pair of calls leads to has the largest number for that.
std::map<std::string, std::pair<int64_t, int64_t>> EstimateClocks(const Timeline& timeline,
                                                                  const std::string& reference);

// Perfetto's TrackEvent protobuf: a process a rank, a track for its phases, and as many a group as
// have calls at a time; flows join the calls of one collective and the ends of a message.
std::string PerfettoTrace(const Timeline& timeline);
// Chrome's JSON, for programs that want that.
std::string ChromeTrace(const Timeline& timeline);
// One page without any other file: timeline, heat map, a rank's place, what Diagnose found.
std::string HtmlPage(const Timeline& timeline, const JobView& view,
                     const std::vector<Finding>& findings);
// A rank's calls as PyTorch's Flight Recorder dumps them (version 2.10, pickle), for fr_trace.
std::string FlightRecorderDump(const Timeline& timeline, const TimelineRank& rank);

// Puts spans that overlap into lanes; returns each span's. Spans by start.
std::vector<int> Lanes(const std::vector<const TimelineSpan*>& spans);

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_TIMELINE_H_
