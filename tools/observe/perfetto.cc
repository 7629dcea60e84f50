// Field numbers: protos/perfetto/trace/trace_packet.proto, track_event/track_event.proto,
// track_event/track_descriptor.proto, track_event/debug_annotation.proto of Perfetto.
#include <functional>
#include <map>

#include "absl/strings/str_cat.h"
#include "base/protobuf.h"
#include "tools/observe/timeline.h"
#include "tools/observe/valid_utf8.h"

namespace weft::observe {
namespace {

constexpr int kPacket = 1, kTimestamp = 8, kSequenceId = 10, kTrackEvent = 11,
              kTrackDescriptor = 60;
constexpr int kUuid = 1, kName = 2, kProcess = 3, kParentUuid = 5;
constexpr int kPid = 1, kProcessName = 6;
constexpr int kType = 9, kTrackUuid = 11, kEventName = 23, kFlowIds = 47, kAnnotation = 4;
constexpr int kAnnotationName = 10, kIntValue = 4, kStringValue = 6;
constexpr uint64_t kSliceBegin = 1, kSliceEnd = 2;

class Writer {
 public:
  void Rank(const TimelineRank& rank) {
    process_ = ++last_uuid_;
    ProtobufWriter process, track;
    process.Varint(kPid, static_cast<uint64_t>(rank.rank) + 1);  // 0 is the kernel's idle process
    process.Bytes(kProcessName,
                  absl::StrCat("rank ", rank.rank, " (pid ", rank.pid, " on ", rank.host, ")"));
    track.Varint(kUuid, process_);
    track.Message(kProcess, process);
    Descriptor(track);
  }
  uint64_t Track(const std::string& name) {
    ProtobufWriter track;
    track.Varint(kUuid, ++last_uuid_);
    track.Bytes(kName, ValidUtf8(name));
    track.Varint(kParentUuid, process_);
    Descriptor(track);
    return last_uuid_;
  }
  void Slice(uint64_t track, const TimelineSpan& span, uint64_t flow) {
    ProtobufWriter begin;
    begin.Varint(kType, kSliceBegin);
    begin.Varint(kTrackUuid, track);
    const std::string name = ValidUtf8(span.name);
    begin.Bytes(kEventName, span.done ? name : absl::StrCat(name, " (under way)"));
    if (flow != 0) begin.Fixed64(kFlowIds, flow);
    Annotate(&begin,
             span.is_phase()     ? "step"
             : span.is_message() ? "tag"
                                 : "sequence",
             span.number);
    if (span.bytes >= 0) Annotate(&begin, "bytes", span.bytes);
    if (span.is_message()) Annotate(&begin, "peer", span.peer);
    if (!span.is_phase()) {
      ProtobufWriter group;
      group.Bytes(kAnnotationName, "group");
      group.Bytes(kStringValue, ValidUtf8(span.group));
      begin.Message(kAnnotation, group);
    }
    Event(span.start_ns, begin);
    ProtobufWriter end;
    end.Varint(kType, kSliceEnd);
    end.Varint(kTrackUuid, track);
    Event(span.end_ns, end);
  }
  const std::string& text() const { return trace_.text(); }

 private:
  static void Annotate(ProtobufWriter* event, const char* name, int64_t value) {
    ProtobufWriter annotation;
    annotation.Bytes(kAnnotationName, name);
    annotation.Varint(kIntValue, static_cast<uint64_t>(value));
    event->Message(kAnnotation, annotation);
  }
  void Descriptor(const ProtobufWriter& track) {
    ProtobufWriter packet;
    packet.Varint(kSequenceId, 1);
    packet.Message(kTrackDescriptor, track);
    trace_.Message(kPacket, packet);
  }
  void Event(int64_t time_ns, const ProtobufWriter& event) {
    ProtobufWriter packet;
    packet.Varint(kTimestamp, static_cast<uint64_t>(time_ns));
    packet.Varint(kSequenceId, 1);
    packet.Message(kTrackEvent, event);
    trace_.Message(kPacket, packet);
  }

  ProtobufWriter trace_;
  uint64_t process_ = 0, last_uuid_ = 0;
};

// The same on every rank that takes part.
uint64_t FlowOf(int rank, const TimelineSpan& span, std::map<std::string, int>* messages) {
  if (span.is_phase()) return 0;
  std::string key = absl::StrCat(span.group, " ", span.number);
  if (span.is_message()) {
    const bool sends = span.name == "send";
    key = absl::StrCat(key, " ", sends ? rank : span.peer, ">", sends ? span.peer : rank);
    key = absl::StrCat(key, " ", (*messages)[key]++);
  }
  return std::hash<std::string>()(key) | 1;
}

}  // namespace

std::string PerfettoTrace(const Timeline& timeline) {
  Writer writer;
  for (const TimelineRank& rank : timeline.ranks) {
    writer.Rank(rank);
    std::map<std::string, std::vector<const TimelineSpan*>> tracks;
    for (const TimelineSpan& span : rank.spans) tracks[span.group].push_back(&span);
    std::map<std::string, int> messages;
    for (const auto& [group, spans] : tracks) {
      // Phases nest, and are one track; calls overlap.
      const std::vector<int> lanes =
          group.empty() ? std::vector<int>(spans.size(), 0) : Lanes(spans);
      std::map<int, uint64_t> uuids;
      for (size_t i = 0; i < spans.size(); ++i) {
        uint64_t& uuid = uuids[lanes[i]];
        if (uuid == 0) {
          uuid = writer.Track(group.empty()   ? "phases"
                              : lanes[i] == 0 ? group
                                              : absl::StrCat(group, " (", lanes[i] + 1, ")"));
        }
        writer.Slice(uuid, *spans[i], FlowOf(rank.rank, *spans[i], &messages));
      }
    }
  }
  return writer.text();
}

}  // namespace weft::observe
