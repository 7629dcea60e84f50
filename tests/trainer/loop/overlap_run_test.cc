// Overlap can be switched off by axis: losses stay, and the order of events shows that it is off.
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "tests/trainer/loop/train_run.h"

namespace weft::train {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kComputeTrack = 0, kPipelineTrack = 3;

struct Span {
  std::string name;
  int64_t track = 0;
  int64_t begin = 0, end = 0;  // nanoseconds
  bool Waits() const { return name.rfind("wait_", 0) == 0; }
  bool IsPass() const { return name == "forward" || name == "backward"; }
};

// One rank's spans in the run's trace.json.
std::vector<Span> SpansOf(const std::string& run_dir, int rank) {
  std::ifstream file(run_dir + "/trace.json");
  const json events = json::parse(file)["traceEvents"];
  std::vector<Span> spans;
  for (const json& event : events) {
    if (event["ph"] != "X" || event["pid"] != rank) continue;
    const double begin = event["ts"], length = event["dur"];
    spans.push_back({event["name"], event["tid"], std::llround(begin * 1e3),
                     std::llround(begin * 1e3) + std::llround(length * 1e3)});
  }
  return spans;
}

// Spans of collectives on other tracks than the pipeline's that begin while the rank waits for
// another one.
int BegunInWaits(const std::vector<Span>& spans) {
  int count = 0;
  for (const Span& wait : spans) {
    if (!wait.Waits()) continue;
    for (const Span& other : spans) {
      if (other.track == kComputeTrack || other.track == kPipelineTrack) continue;
      if (other.name == "send" || other.name == "receive") continue;
      count += wait.begin < other.begin && other.begin < wait.end ? 1 : 0;
    }
  }
  return count;
}

// Receives of the pipeline that are under way while a pass runs.
int ReceivedUnderPasses(const std::vector<Span>& spans) {
  int count = 0;
  for (const Span& receive : spans) {
    if (receive.track != kPipelineTrack || receive.name != "receive") continue;
    for (const Span& pass : spans) {
      count += pass.IsPass() && pass.begin < receive.end && receive.begin < pass.end ? 1 : 0;
    }
  }
  return count;
}

const std::vector<std::string> kOff = {"parallel.overlap=none", "parallel.receives_ahead=0",
                                       "data.prefetch=0"};

struct Case {
  const char* name;
  int ranks;
  std::vector<std::string> settings;
};
class OverlapRunTest : public TrainRunTest, public ::testing::WithParamInterface<Case> {};

TEST_P(OverlapRunTest, WithoutItLossesAreTheSameAndNothingRunsUnderComputation) {
  std::vector<std::string> settings = {"train.precision=fp32", "train.steps=4", "model.layers=4",
                                       "sample.tokens=0", "checkpoint.every=0"};
  settings.insert(settings.end(), GetParam().settings.begin(), GetParam().settings.end());
  const std::string with = std::string(GetParam().name) + "_with";
  const std::string without = std::string(GetParam().name) + "_without";
  Outcome outcome = Run(GetParam().ranks, with, settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  settings.insert(settings.end(), kOff.begin(), kOff.end());
  outcome = Run(GetParam().ranks, without, settings);
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  // A product in two pieces may round otherwise than one.
  EXPECT_LT(LargestDifference(Metrics(with), Metrics(without)), 1e-5);
  for (int rank = 0; rank < GetParam().ranks; ++rank) {
    const std::vector<Span> spans = SpansOf(RunDir(without), rank);
    ASSERT_FALSE(spans.empty());
    EXPECT_EQ(BegunInWaits(spans), 0) << "rank " << rank;
    EXPECT_EQ(ReceivedUnderPasses(spans), 0) << "rank " << rank;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Layouts, OverlapRunTest,
    ::testing::Values(Case{"tp2_pp2",
                           4,
                           {"parallel.tensor=2", "parallel.tensor_chunks=2", "parallel.pipeline=2",
                            "train.micro_batch=2"}},
                      Case{"cp2_dp2_zero3", 4, {"parallel.context=2", "parallel.zero=3"}},
                      Case{"cp2_ulysses",
                           2,
                           {"parallel.context=2", "parallel.context_method=ulysses",
                            "model.heads=8"}},
                      Case{"ep2_zero_group",
                           4,
                           {"parallel.expert=2", "parallel.zero_group=2", "model.experts=4",
                            "train.micro_batch=1"}}),
    [](const auto& info) { return std::string(info.param.name); });

// The counterpart: what the test above looks for is there with overlap, and with the pieces that
// rows are exchanged in where cores of others move them.
TEST_F(TrainRunTest, ByDefaultExchangesAreUnderWayTogetherAndReceivesUnderPasses) {
  const Outcome outcome =
      Run(4, "default",
          {"parallel.tensor=2", "parallel.tensor_chunks=2", "parallel.tensor_gathered=again",
           "parallel.pipeline=2", "train.micro_batch=1", "train.steps=20", "model.layers=4",
           "sample.tokens=0"});
  ASSERT_EQ(outcome.status, 0) << outcome.output;
  int in_waits = 0, under_passes = 0;
  for (int rank = 0; rank < 4; ++rank) {
    const std::vector<Span> spans = SpansOf(RunDir("default"), rank);
    in_waits += BegunInWaits(spans);
    under_passes += ReceivedUnderPasses(spans);
  }
  EXPECT_GT(in_waits, 0);
  EXPECT_GT(under_passes, 0);
}

// Four pieces of heads that are exchanged for tokens.
TEST_F(TrainRunTest, PiecesOfHeadsHaveTheLossesOfOnePieceToTheBitAndThoseOfOneRank) {
  const std::vector<std::string> model = {
      "train.precision=fp32", "train.steps=6",         "model.layers=2", "model.heads=16",
      "model.kv_heads=8",     "model.position=rotary", "model.window=8", "model.window_layers=odd",
      "sample.tokens=0",      "checkpoint.every=0"};
  const auto run = [&](int ranks, const std::string& name, std::vector<std::string> settings) {
    settings.insert(settings.end(), model.begin(), model.end());
    const Outcome outcome = Run(ranks, name, settings);
    EXPECT_EQ(outcome.status, 0) << outcome.output;
    return Metrics(name);
  };
  const auto exchanges = [](const std::string& name) {
    const std::vector<Span> spans = SpansOf(RunDir(name), 0);
    return std::count_if(spans.begin(), spans.end(),
                         [](const Span& span) { return span.name == "all_to_all"; });
  };
  const std::string cut = "parallel.context=2", method = "parallel.context_method=ulysses";
  const std::map<int, json> pieces = run(2, "pieces", {cut, method});
  const std::map<int, json> one = run(2, "one_piece", {cut, method, "parallel.overlap=data"});
  ASSERT_EQ(pieces.size(), 6U);
  EXPECT_GT(exchanges("one_piece"), 0);
  EXPECT_EQ(exchanges("pieces"), 4 * exchanges("one_piece"));
  EXPECT_EQ(LargestDifference(pieces, one), 0.0);
  for (const char* kind : {"selective", "full"}) {
    const std::string recompute = std::string("train.recompute=") + kind;
    EXPECT_EQ(LargestDifference(pieces, run(2, kind, {cut, method, recompute})), 0.0) << kind;
  }
  EXPECT_LT(LargestDifference(pieces, run(1, "one_rank", {})), 1e-5);
}

}  // namespace
}  // namespace weft::train
