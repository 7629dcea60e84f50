#include "tools/observe/timeline.h"

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/protobuf.h"
#include "base/status.h"

namespace weft::observe {
namespace {

constexpr int64_t kUnknown = std::numeric_limits<int64_t>::max();

// In which all ranks wait for all: what EstimateClocks may draw conclusions from.
bool MeetsEverybody(const std::string& name) {
  static const std::set<std::string> names = {"all_reduce", "all_gather",   "reduce_scatter",
                                              "all_to_all", "all_gather_v", "barrier"};
  return names.count(name) != 0;
}

// What hosts are called in a timeline. Where the wall clock is as far ahead of the monotonic one in
// two rings as it never is on one machine, they are of two machines of one name, or the wall clock
// was set between them; either way the calls say how the clocks differ.
class HostNames {
 public:
  std::string Of(const RecordProcess& process) {
    constexpr int64_t kSameHostNs = 1'000'000'000;
    const int64_t base_ns = process.realtime_ns - process.monotonic_ns;
    std::vector<int64_t>& bases = bases_[process.host];
    size_t at = 0;
    while (at < bases.size() && std::abs(bases[at] - base_ns) >= kSameHostNs) ++at;
    if (at == bases.size()) bases.push_back(base_ns);
    return at == 0 ? process.host : absl::StrCat(process.host, " (", at + 1, ")");
  }

 private:
  std::map<std::string, std::vector<int64_t>> bases_;  // by name
};

struct RingSoFar {
  TimelineRank* rank = nullptr;
  const Members* members = nullptr;
  std::map<std::tuple<std::string, std::string, uint32_t, int64_t>, size_t> open;
};

void TakeRecord(void* context, const RecordReader& reader, const Record& record) {
  auto& reading = *static_cast<RingSoFar*>(context);
  std::vector<TimelineSpan>& spans = reading.rank->spans;
  if (record.kind() == RecordKind::kPhase) {
    const auto phase = record.As<PhaseRecord>();
    spans.push_back({.name = reader.Name(phase.name),
                     .start_ns = phase.start_ns,
                     .end_ns = phase.end_ns,
                     .number = phase.step});
    return;
  }
  if (record.kind() != RecordKind::kCall && record.kind() != RecordKind::kDone) return;
  auto call = record.As<CallRecord>();
  const std::string name = reader.Name(call.name), group = reader.Name(call.group);
  if (call.peer >= 0) call.peer = reading.members->RankOf(group, call.peer);
  const auto key = std::tuple(name, group, call.sequence, call.start_ns);
  auto known = reading.open.find(key);
  if (known == reading.open.end()) {
    known = reading.open.emplace(key, spans.size()).first;
    spans.push_back({.name = name,
                     .group = group.empty() ? "?" : group,
                     .start_ns = call.start_ns,
                     .done = false,
                     .number = call.sequence,
                     .bytes = static_cast<int64_t>(call.bytes),
                     .peer = call.peer,
                     .count = call.count,
                     .type = call.type});
  }
  if (record.kind() == RecordKind::kCall) return;
  TimelineSpan& span = spans[known->second];
  span.end_ns = call.end_ns;
  span.peer = call.peer;
  span.done = true;
  span.code = call.code;
  reading.open.erase(known);
}

// A host's bounds in one collective or message: the first that had ended, the last that began.
struct Bounds {
  int64_t end_min = kUnknown, start_max = -kUnknown;
};

// What is known of the clock of `to` less that of `from`: low <= difference <= high, where the
// difference is what must be added to the times of `to`, less that of `from`.
struct Range {
  int64_t low = -kUnknown, high = kUnknown;
  int64_t error() const {
    return low == -kUnknown || high == kUnknown ? kUnknown : std::max<int64_t>((high - low) / 2, 0);
  }
  int64_t middle() const { return low / 2 + high / 2; }
};

using Ranges = std::map<std::pair<std::string, std::string>, Range>;

void Narrow(const std::string& a, const Bounds& in_a, const std::string& b, const Bounds& in_b,
            Ranges* ranges) {
  Range& range = (*ranges)[{a, b}];
  // end_a + o_a >= start_b + o_b, and the other way round.
  if (in_a.end_min != kUnknown && in_b.start_max != -kUnknown) {
    range.high = std::min(range.high, in_a.end_min - in_b.start_max);
  }
  if (in_b.end_min != kUnknown && in_a.start_max != -kUnknown) {
    range.low = std::max(range.low, in_a.start_max - in_b.end_min);
  }
}

Ranges ClockRanges(const Timeline& timeline) {
  std::map<std::tuple<std::string, std::string, int64_t>, std::map<std::string, Bounds>> calls;
  // Messages by sender, receiver, group and tag, in the order of their calls.
  std::map<std::tuple<int, int, std::string, int64_t>, std::vector<const TimelineSpan*>> sent, got;
  std::map<int, std::string> host_of;
  for (const TimelineRank& rank : timeline.ranks) {
    host_of[rank.rank] = rank.host;
    for (const TimelineSpan& span : rank.spans) {
      if (span.is_phase()) continue;
      if (span.is_message()) {
        const bool sends = span.name == "send";
        auto& list = sends ? sent : got;
        list[{sends ? rank.rank : span.peer, sends ? span.peer : rank.rank, span.group,
              span.number}]
            .push_back(&span);
      } else if (MeetsEverybody(span.name)) {
        Bounds& bounds = calls[{span.group, span.name, span.number}][rank.host];
        bounds.start_max = std::max(bounds.start_max, span.start_ns);
        if (span.done && span.code == 0) bounds.end_min = std::min(bounds.end_min, span.end_ns);
      }
    }
  }
  Ranges ranges;
  for (const auto& [key, hosts] : calls) {
    for (const auto& [a, in_a] : hosts) {
      for (const auto& [b, in_b] : hosts) {
        if (a != b) Narrow(a, in_a, b, in_b, &ranges);
      }
    }
  }
  // Rings may have lost the first of them: pairs are counted from the end, where both have as many
  // or the job was still sending; only lists of one length are certain.
  for (const auto& [key, sends] : sent) {
    const auto receives = got.find(key);
    if (receives == got.end() || receives->second.size() != sends.size()) continue;
    const std::string a = host_of[std::get<0>(key)], b = host_of[std::get<1>(key)];
    if (a == b) continue;
    for (size_t i = 0; i < sends.size(); ++i) {
      const TimelineSpan& receive = *receives->second[i];
      if (!receive.done || receive.code != 0) continue;
      Bounds in_a{.start_max = sends[i]->start_ns}, in_b{.end_min = receive.end_ns};
      Narrow(a, in_a, b, in_b, &ranges);
      Narrow(b, in_b, a, in_a, &ranges);
    }
  }
  return ranges;
}

}  // namespace

std::map<std::string, std::pair<int64_t, int64_t>> EstimateClocks(const Timeline& timeline,
                                                                  const std::string& reference) {
  const Ranges ranges = ClockRanges(timeline);
  std::map<std::string, std::pair<int64_t, int64_t>> clocks;
  for (const TimelineRank& rank : timeline.ranks) clocks[rank.host] = {0, kUnknown};
  clocks[reference] = {0, 0};
  // Dijkstra by the sum of the errors.
  std::set<std::string> settled;
  while (settled.size() < clocks.size()) {
    const auto next =
        std::min_element(clocks.begin(), clocks.end(), [&](const auto& a, const auto& b) {
          const bool a_done = settled.count(a.first) != 0, b_done = settled.count(b.first) != 0;
          return a_done != b_done ? b_done : a.second.second < b.second.second;
        });
    if (next->second.second == kUnknown) break;
    settled.insert(next->first);
    for (auto& [host, clock] : clocks) {
      const auto range = ranges.find({next->first, host});
      if (settled.count(host) != 0 || range == ranges.end()) continue;
      if (range->second.error() == kUnknown) continue;
      const int64_t error = next->second.second + range->second.error();
      if (error >= clock.second) continue;
      clock = {next->second.first + range->second.middle(), error};
    }
  }
  return clocks;
}

absl::StatusOr<Timeline> ReadTimeline(const JobView& view, const std::vector<std::string>& files) {
  Timeline timeline{
      .job = view.job, .mesh = view.mesh, .world_size = view.world_size, .groups = view.groups};
  HostNames hosts;
  for (const std::string& file : files) {
    WEFT_ASSIGN_OR_RETURN(std::unique_ptr<RecordReader> reader, RecordReader::Open(file));
    const RecordProcess process = reader->process();
    TimelineRank rank{.rank = process.rank, .host = hosts.Of(process), .pid = process.pid};
    RingSoFar reading{&rank, &view.members, {}};
    RankView unused;
    RankReader ring(std::move(reader));
    ring.Update(&unused, TakeRecord, &reading);
    rank.lost = ring.reader().lost();
    int64_t last_ns = std::max({unused.moved_ns, process.alive_ns, process.ended_ns});
    for (TimelineSpan& span : rank.spans) {
      if (!span.done) span.end_ns = std::max(last_ns, span.start_ns);
    }
    timeline.ranks.push_back(std::move(rank));
  }
  std::sort(timeline.ranks.begin(), timeline.ranks.end(),
            [](const auto& a, const auto& b) { return a.rank < b.rank; });
  if (timeline.ranks.empty()) return absl::NotFoundError("no ring of the job holds a record");
  timeline.clocks = EstimateClocks(timeline, timeline.ranks.front().host);
  for (TimelineRank& rank : timeline.ranks) {
    const int64_t shift = timeline.clocks[rank.host].first;
    for (TimelineSpan& span : rank.spans) span.start_ns += shift, span.end_ns += shift;
    std::stable_sort(rank.spans.begin(), rank.spans.end(), [](const auto& a, const auto& b) {
      return a.start_ns != b.start_ns ? a.start_ns < b.start_ns : a.end_ns > b.end_ns;
    });
  }
  return timeline;
}

std::vector<int> Lanes(const std::vector<const TimelineSpan*>& spans) {
  std::vector<int> lanes;
  std::vector<int64_t> ends;
  for (const TimelineSpan* span : spans) {
    size_t lane = 0;
    while (lane < ends.size() && ends[lane] > span->start_ns) ++lane;
    if (lane == ends.size()) ends.push_back(0);
    ends[lane] = span->end_ns;
    lanes.push_back(static_cast<int>(lane));
  }
  return lanes;
}

std::string ChromeTrace(const Timeline& timeline) {
  nlohmann::json events = nlohmann::json::array();
  for (const TimelineRank& rank : timeline.ranks) {
    events.push_back({{"ph", "M"},
                      {"pid", rank.rank},
                      {"name", "process_name"},
                      {"args", {{"name", absl::StrCat("rank ", rank.rank)}}}});
    for (const TimelineSpan& span : rank.spans) {
      nlohmann::json args = {{span.is_phase() ? "step" : "seq", span.number}};
      if (span.bytes >= 0) args["bytes"] = span.bytes;
      if (!span.is_phase()) args["group"] = span.group;
      events.push_back({{"ph", "X"},
                        {"pid", rank.rank},
                        {"tid", span.is_phase() ? "phases" : span.group},
                        {"name", span.name},
                        {"ts", static_cast<double>(span.start_ns) / 1e3},
                        {"dur", static_cast<double>(span.end_ns - span.start_ns) / 1e3},
                        {"args", args}});
    }
  }
  const nlohmann::json out = {{"displayTimeUnit", "ms"}, {"traceEvents", events}};
  return JsonText(out) + "\n";
}

}  // namespace weft::observe
