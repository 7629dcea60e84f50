#include "tools/observe/prometheus.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <regex>
#include <set>

#include "absl/strings/str_split.h"
#include "tests/scratch_folder.h"

namespace weft::observe {
namespace {

using testing::HasSubstr;
using testing::Not;

std::vector<Metric> Some() {
  JobView view;
  view.job = "a \"job\"\\";
  view.world_size = 2;
  view.now_ns = 5'000'000'000;
  for (int rank = 0; rank < 2; ++rank) {
    RankView& one = view.ranks[rank];
    one.process.rank = rank;
    one.state = {
        .known = true, .exists = true, .state = 'S', .cpu_seconds = 1.5, .major_faults = 4};
    one.readings[{"gpu/0", "DCGM_FI_DEV_XID_ERRORS"}] = {.first = 0, .last = 79, .known = true};
    one.readings[{"gpu/0", "never_seen"}] = {};
    one.steps.push_back({.step = 3,
                         .start_ns = 0,
                         .end_ns = 2'000'000'000,
                         .loss = 1.25,
                         .seconds = {{"forward", 1.5}, {"wait_norm", 0.5}}});
    Flow flow{"tcp", {}};
    flow.record.bytes_done = 1000;
    one.flows[{1 - rank, true}] = flow;
  }
  Finding finding{.fault = Fault::kSlowRank, .component = Component::kDevice};
  HostCounters host;
  host.interfaces["eth0"] = {{"rx_bytes", 7}};
  host.rdma["mlx5_0/1"] = {{"out_of_sequence", 3}};
  return Metrics({view}, {{finding}}, host, {});
}

// Its records may stay (records.keep): an alert on them would never end.
TEST(Prometheus, TakesARankThatHasEndedInGoodOrderForNoneThatIsDown) {
  JobView view{.job = "job", .world_size = 2, .now_ns = 100'000'000'000};
  for (const int number : {0, 1}) {
    RankView& rank = view.ranks[number];
    rank.process.rank = number;
    rank.state = {.known = true, .exists = false};
    rank.open.push_back({.name = "all_reduce", .group = "world", .record = {.start_ns = 1}});
  }
  view.ranks[1].process.ended_ns = 2;
  const std::string text = PrometheusText(Metrics({view}, {{}}, {}, {}));
  EXPECT_THAT(text, HasSubstr("weft_rank_up{job=\"job\",rank=\"0\"} 0"));
  EXPECT_THAT(text, Not(HasSubstr("weft_rank_up{job=\"job\",rank=\"1\"}")));
  EXPECT_THAT(text, HasSubstr("weft_rank_oldest_call_age_seconds{job=\"job\",rank=\"1\"} 0"));
}

// The rules of the format 0.0.4 and of promtool: help and type once and first, counters end in
// _total and nothing else does, names and labels are of their alphabet, no series twice.
TEST(Prometheus, WritesTheTextFormat) {
  const std::string text = PrometheusText(Some());
  const std::regex line(
      R"re(([a-z_][a-z0-9_]*)(\{[a-z_]+="([^"\\\n]|\\["\\n])*"(,[a-z_]+="([^"\\\n]|\\["\\n])*")*\})? [-+0-9.eE]+|NaN)re");
  std::set<std::string> typed, series;
  std::string current;
  const std::vector<std::string> rows = absl::StrSplit(text, '\n', absl::SkipEmpty());
  for (const std::string& row : rows) {
    if (row.rfind("# HELP ", 0) == 0) {
      current = row.substr(7, row.find(' ', 7) - 7);
      EXPECT_TRUE(typed.insert(current).second) << row;
      continue;
    }
    if (row.rfind("# TYPE ", 0) == 0) {
      const bool counter = row.substr(row.rfind(' ') + 1) == "counter";
      EXPECT_EQ(counter, current.size() > 6 && current.substr(current.size() - 6) == "_total")
          << row;
      continue;
    }
    EXPECT_TRUE(std::regex_match(row, line)) << row;
    EXPECT_EQ(row.substr(0, row.find_first_of(" {")), current) << row;
    EXPECT_TRUE(series.insert(row.substr(0, row.rfind(' '))).second) << row;
  }
  EXPECT_THAT(text,
              HasSubstr("weft_rank_step_duration_seconds{job=\"a \\\"job\\\"\\\\\",rank=\"0\"} 2"));
  EXPECT_THAT(text, HasSubstr("weft_rank_exposed_communication_ratio"));
  EXPECT_THAT(text, HasSubstr("fault=\"slow rank\",component=\"device\"} 1"));
  EXPECT_THAT(text, HasSubstr("weft_host_interface_rx_bytes_total{interface=\"eth0\"} 7"));
  EXPECT_THAT(text, HasSubstr("counter=\"out_of_sequence\"} 3"));
  EXPECT_THAT(text, HasSubstr("rank=\"1\",kind=\"major\"} 4"));
  EXPECT_THAT(text,
              HasSubstr("weft_rank_reading{job=\"a \\\"job\\\"\\\\\",rank=\"0\",source=\"gpu/0\","
                        "reading=\"DCGM_FI_DEV_XID_ERRORS\"} 79"));
  EXPECT_THAT(text, Not(HasSubstr("never_seen")));
}

// Prometheus takes nothing of a page that is no UTF-8: "\xC3" is the first half of a letter.
TEST(Prometheus, ReplacesWhatIsNoUtf8InALabel) {
  const std::string text =
      PrometheusText({{.name = "x", .help = "y", .samples = {{{{"job", "tr\xC3\"\t\n"}}, 1}}}});
  EXPECT_THAT(text, HasSubstr("x{job=\"tr\xEF\xBF\xBD\\\"\t\\n\"} 1.0\n"));
}

TEST(Prometheus, LabelsByNoStepNoNumberAndNoPair) {
  for (const Metric& metric : Some()) {
    for (const Sample& sample : metric.samples) {
      for (const auto& [name, value] : sample.labels) {
        EXPECT_TRUE(name != "step" && name != "peer" && name != "sequence") << metric.name;
      }
    }
  }
}

TEST(Otlp, IsTheJsonOfTheProtocol) {
  const nlohmann::json body = nlohmann::json::parse(OtlpMetricsJson(Some(), 1234567890123456789));
  const nlohmann::json& rows = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"];
  EXPECT_EQ(body["resourceMetrics"][0]["resource"]["attributes"][0]["value"]["stringValue"],
            "weft-agent");
  bool sums = false;
  for (const nlohmann::json& row : rows) {
    ASSERT_TRUE(row.contains("sum") != row.contains("gauge")) << row;
    const nlohmann::json& data = row.contains("sum") ? row["sum"] : row["gauge"];
    sums |= row.contains("sum") && data["isMonotonic"] == true;
    for (const nlohmann::json& point : data["dataPoints"]) {
      EXPECT_EQ(point["timeUnixNano"], "1234567890123456789");
      EXPECT_TRUE(point["asDouble"].is_number());
    }
  }
  EXPECT_TRUE(sums);
}

TEST(HostCounters, AreReadFromTheKernelsFiles) {
  ScratchFolder root;
  root.Write("sys/class/net/eth7/statistics/rx_bytes", "12\n");
  root.Write("sys/class/net/eth7/carrier_changes", "3\n");
  root.Write("proc/loadavg", "1.50 1 1 1/1 1\n");
  root.Write("proc/pressure/cpu", "some avg10=25.00 avg60=0.00 avg300=0.00 total=1\n");
  const HostCounters counters = ReadHostCounters(root.path());
  EXPECT_EQ(counters.interfaces.at("eth7").at("rx_bytes"), 12);
  EXPECT_EQ(counters.interfaces.at("eth7").at("carrier_changes"), 3);
  EXPECT_EQ(counters.load, 1.5);
  EXPECT_EQ(counters.cpu_pressure, 0.25);
}

}  // namespace
}  // namespace weft::observe
