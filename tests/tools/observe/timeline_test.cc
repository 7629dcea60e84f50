#include "tools/observe/timeline.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstddef>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/records.h"
#include "tests/scratch_folder.h"

namespace weft::observe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMillisecond = 1'000'000;

TimelineSpan Call(const std::string& name, int64_t number, int64_t start_ns, int64_t end_ns) {
  return {.name = name,
          .group = "world",
          .start_ns = start_ns,
          .end_ns = end_ns,
          .number = number,
          .bytes = 64,
          .count = 16,
          .type = 8};
}

// Hosts whose clocks are seconds apart: each collective ends within two milliseconds of its last
// call, everywhere; calls come up to 20 ms apart.
TEST(EstimateClocks, FindsClocksThatAreSecondsApartByTheCallsAlone) {
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    Random random(seed);
    std::vector<int64_t> wrong = {0, 5'000 * kMillisecond, -5'000 * kMillisecond};
    Timeline timeline;
    for (int host = 0; host < 3; ++host) {
      timeline.ranks.push_back({.rank = host, .host = absl::StrCat("host", host)});
    }
    int64_t now = 1000 * kMillisecond;
    for (int number = 0; number < 50; ++number) {
      now += 50 * kMillisecond;
      int64_t starts[3], last = 0;
      for (int64_t& start : starts) {
        start = now + static_cast<int64_t>(random.Below(20)) * kMillisecond;
        last = std::max(last, start);
      }
      for (size_t host = 0; host < 3; ++host) {
        const int64_t end = last + static_cast<int64_t>(random.Below(2 * kMillisecond));
        timeline.ranks[host].spans.push_back(
            Call("all_reduce", number, starts[host] + wrong[host], end + wrong[host]));
      }
    }
    const auto clocks = EstimateClocks(timeline, "host0");
    for (size_t host = 1; host < 3; ++host) {
      const auto [added, within] = clocks.at(absl::StrCat("host", host));
      EXPECT_LE(std::abs(added + wrong[host]), within) << seed;
      EXPECT_LE(within, 3 * kMillisecond) << seed;
    }
  }
}

TEST(EstimateClocks, BoundsByMessagesBothWays) {
  Timeline timeline;
  timeline.ranks = {{.rank = 0, .host = "a"}, {.rank = 1, .host = "b"}};
  const int64_t wrong = 777 * kMillisecond;
  const auto message = [&](int from, int to, int64_t start, int64_t end) {
    for (const bool sends : {true, false}) {
      TimelineSpan span = Call(sends ? "send" : "receive", 7, start, end);
      span.peer = sends ? to : from;
      const int own = sends ? from : to;
      if (own == 1) span.start_ns += wrong, span.end_ns += wrong;
      timeline.ranks[static_cast<size_t>(own)].spans.push_back(span);
    }
  };
  message(0, 1, 100 * kMillisecond, 104 * kMillisecond);
  message(1, 0, 200 * kMillisecond, 204 * kMillisecond);
  const auto [added, within] = EstimateClocks(timeline, "a").at("b");
  EXPECT_LE(std::abs(added + wrong), within);
  EXPECT_LE(within, 4 * kMillisecond);
}

TEST(EstimateClocks, SaysWhatItCannotKnow) {
  Timeline timeline;
  timeline.ranks = {{.rank = 0, .host = "a"}, {.rank = 1, .host = "b"}};
  EXPECT_EQ(EstimateClocks(timeline, "a").at("b").second, INT64_MAX);
}

// Containers are often called alike. A machine that was booted an hour later has clocks that are an
// hour behind, and the same wall clock.
TEST(ReadTimeline, PutsTwoMachinesOfOneNameOnOneClock) {
  constexpr int64_t kHour = 3600 * 1000 * kMillisecond;
  ScratchFolder folder;
  JobView view{.job = "job", .world_size = 2};
  std::vector<std::string> files;
  for (const int rank : {0, 1}) {
    const int64_t behind = rank * kHour;
    auto records = Records::Open({.folder = folder / absl::StrCat(rank),
                                  .job = "job",
                                  .rank = rank,
                                  .world_size = 2,
                                  .keep = true});
    ASSERT_TRUE(records.ok()) << records.status();
    for (uint32_t sequence = 0; sequence < 3; ++sequence) {
      CallRecord call{.kind = RecordKind::kDone};
      call.name = (*records)->Name("all_reduce");
      call.group = (*records)->Name("world");
      call.sequence = sequence;
      call.start_ns = (10 * sequence + 1) * kMillisecond + 2 * kHour - behind;
      call.end_ns = call.start_ns + kMillisecond;
      (*records)->Write(call);
    }
    files.push_back((*records)->path());
    const int fd = open(files.back().c_str(), O_RDWR | O_CLOEXEC);
    ASSERT_GE(fd, 0);
    int64_t monotonic_ns = 0;
    const off_t at = offsetof(RecordFileHeader, monotonic_ns);
    ASSERT_EQ(pread(fd, &monotonic_ns, sizeof(monotonic_ns), at), 8);
    monotonic_ns -= behind;
    ASSERT_EQ(pwrite(fd, &monotonic_ns, sizeof(monotonic_ns), at), 8);
    close(fd);
  }
  const absl::StatusOr<Timeline> timeline = ReadTimeline(view, files);
  ASSERT_TRUE(timeline.ok()) << timeline.status();
  ASSERT_THAT(timeline->ranks, testing::SizeIs(2));
  EXPECT_EQ(timeline->ranks[1].host, timeline->ranks[0].host + " (2)");
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(timeline->ranks[1].spans[i].start_ns, timeline->ranks[0].spans[i].start_ns);
  }
}

TEST(Lanes, KeepOverlappingCallsApart) {
  const TimelineSpan a = Call("x", 0, 0, 10), b = Call("x", 1, 5, 15), c = Call("x", 2, 10, 20);
  EXPECT_THAT(Lanes({&a, &b, &c}), ElementsAre(0, 1, 0));
}

Timeline Two() {
  Timeline timeline{.job = "job", .mesh = "tp1,dp2,pp1", .world_size = 2};
  timeline.groups["world"] = {0, 1};
  for (int rank = 0; rank < 2; ++rank) {
    TimelineRank one{.rank = rank, .host = "host", .pid = 40 + rank};
    one.spans.push_back({.name = "forward </script>", .start_ns = 0, .end_ns = 500, .number = 3});
    one.spans.push_back(Call("all_reduce", 0, 100, 900));
    one.spans.push_back(Call("all_reduce", 1, 200, 950));
    if (rank == 1) one.spans.back().done = false;
    timeline.ranks.push_back(one);
  }
  timeline.clocks["host"] = {0, 0};
  return timeline;
}

// A small reader of the wire format: (field, number or bytes) of one message.
struct Field {
  uint64_t number = 0, value = 0;
  std::string bytes;
};
std::vector<Field> Fields(absl::string_view text) {
  std::vector<Field> out;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; !text.empty(); shift += 7) {
      const auto byte = static_cast<unsigned char>(text[0]);
      text.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) break;
    }
    return value;
  };
  while (!text.empty()) {
    const uint64_t key = varint();
    Field field{.number = key >> 3};
    size_t size = (key & 7) == 1 ? 8 : (key & 7) == 5 ? 4 : 0;
    if ((key & 7) == 0) field.value = varint();
    if ((key & 7) == 2) size = varint();
    EXPECT_LE(size, text.size());
    field.bytes = std::string(text.substr(0, size));
    text.remove_prefix(std::min(size, text.size()));
    out.push_back(field);
  }
  return out;
}

TEST(PerfettoTrace, HasATrackForEachLaneAndMatchingSlices) {
  int processes = 0, tracks = 0, begins = 0, ends = 0, flows = 0;
  for (const Field& packet : Fields(PerfettoTrace(Two()))) {
    ASSERT_EQ(packet.number, 1u);
    for (const Field& field : Fields(packet.bytes)) {
      if (field.number == 60) {
        for (const Field& part : Fields(field.bytes)) {
          processes += part.number == 3;
          tracks += part.number == 5;
        }
      }
      if (field.number != 11) continue;
      for (const Field& part : Fields(field.bytes)) {
        begins += part.number == 9 && part.value == 1;
        ends += part.number == 9 && part.value == 2;
        flows += part.number == 47;
      }
    }
  }
  EXPECT_EQ(processes, 2);
  EXPECT_EQ(tracks, 6);  // phases and two lanes, of two ranks
  EXPECT_EQ(begins, 6);
  EXPECT_EQ(ends, 6);
  EXPECT_EQ(flows, 4);
}

// As a record keeps 31 bytes of a group's name, the last of which may begin a letter.
TEST(Traces, HoldNoPartOfALetter) {
  const std::string cut = "gro\xc3", whole = "gro\xef\xbf\xbd";
  Timeline timeline = Two();
  timeline.groups[cut] = {0, 1};
  for (TimelineRank& rank : timeline.ranks) {
    for (TimelineSpan& span : rank.spans) {
      if (!span.is_phase()) span.group = cut;
    }
  }
  for (const std::string& trace :
       {PerfettoTrace(timeline), FlightRecorderDump(timeline, timeline.ranks[0])}) {
    EXPECT_THAT(trace, HasSubstr(whole));
    EXPECT_THAT(trace, Not(HasSubstr(cut)));
  }
}

TEST(ChromeTrace, IsJson) {
  const nlohmann::json trace = nlohmann::json::parse(ChromeTrace(Two()));
  EXPECT_EQ(trace["traceEvents"].size(), 8u);
}

TEST(HtmlPage, HoldsItsDataAndNothingThatEndsTheElement) {
  const std::string page = HtmlPage(Two(), JobView{}, {});
  EXPECT_THAT(page, Not(HasSubstr("@DATA@")));
  EXPECT_THAT(page, HasSubstr("forward \\u003c/script>"));
  EXPECT_THAT(page, Not(HasSubstr("http://")));
  EXPECT_THAT(page, Not(HasSubstr("https://")));
}

}  // namespace
}  // namespace weft::observe
