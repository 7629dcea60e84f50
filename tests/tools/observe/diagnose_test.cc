// A vector for each rule: a job made by hand, and what must be said of it. (The flows' are
// Mycroft's table 4, arXiv 2509.03018, in our counters.)
#include "tools/observe/diagnose.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "absl/strings/str_join.h"

namespace weft::observe {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kNow = 100 * kSecond;

// Four ranks of one group that have done five calls and wait in the sixth.
class Job {
 public:
  explicit Job(int ranks = 4) {
    view.job = "job";
    view.world_size = ranks;
    view.now_ns = kNow;
    for (int rank = 0; rank < ranks; ++rank) {
      view.groups["world"].push_back(rank);
      RankView& one = view.ranks[rank];
      one.process.rank = rank;
      one.process.world_size = ranks;
      one.process.host = "host";
      one.process.pid = 1000 + rank;
      one.process.alive_ns = kNow;
      one.process.monotonic_ns = kSecond;
      one.process.step = 6;
      one.state = {.known = true, .exists = true, .state = 'S'};
      one.moved_ns = kNow - 5 * kSecond;
      one.next["world"] = 5;
    }
  }
  RankView& rank(int number) { return view.ranks[number]; }
  void Waits(int number, uint32_t sequence = 5, const std::string& name = "all_reduce",
             uint64_t check = 1, const std::string& group = "world") {
    Call call{name, group, {}};
    call.record.sequence = sequence;
    call.record.start_ns = kNow - 5 * kSecond;
    call.record.check = check;
    call.record.bytes = 4096;
    RankView& one = rank(number);
    one.open.push_back(call);
    one.calls[group].push_back(call);
    one.next[group] = sequence + 1;
    one.process.phase = "wait_all_reduce";
  }
  void Message(int number, bool sends, int peer, uint32_t tag = 7) {
    Call call{sends ? "send" : "receive", "world", {}};
    call.record.peer = peer;
    call.record.sequence = tag;
    call.record.start_ns = kNow - 5 * kSecond;
    rank(number).open.push_back(call);
    rank(number).process.phase = sends ? "wait_send" : "wait_receive";
  }
  void FlowOf(int number, int peer, bool sends, uint16_t outstanding, uint16_t waiting,
              uint64_t transmitted, uint64_t done) {
    Flow flow{"tcp", {}};
    flow.record.sends = sends ? 1 : 0;
    flow.record.peer = peer;
    flow.record.stuck_ms = 5000;
    flow.record.outstanding = outstanding;
    flow.record.waiting = waiting;
    flow.record.bytes_matched = 4096;
    flow.record.bytes_transmitted = transmitted;
    flow.record.bytes_done = done;
    rank(number).flows[{peer, sends}] = flow;
  }
  // Five steps of 100 ms, of which `own` in compute.
  void Steps(int number, double own, const std::string& phase = "forward") {
    RankView& one = rank(number);
    one.moved_ns = kNow;
    for (int step = 1; step <= 5; ++step) {
      StepTimes times{.step = step, .start_ns = kNow - (6 - step) * kSecond / 10};
      times.end_ns = times.start_ns + kSecond / 10;
      times.seconds["forward"] = 0.04;
      times.seconds["data"] = 0.001;
      times.seconds[phase] += own - 0.041;
      times.seconds["wait_all_reduce"] = 0.1 - own;
      one.steps.push_back(times);
    }
  }
  Finding Only() {
    const std::vector<Finding> findings = Diagnose(view);
    EXPECT_THAT(findings, SizeIs(1));
    return findings.empty() ? Finding{} : findings[0];
  }
  JobView view;
};

TEST(Diagnose, SaysNothingOfAHealthyJob) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) job.Steps(rank, 0.05);
  EXPECT_THAT(Diagnose(job.view), IsEmpty());
  for (int rank = 0; rank < 4; ++rank) job.Waits(rank);  // calls that began just now
  job.view.now_ns = kNow + kSecond / 10;
  EXPECT_THAT(Diagnose(job.view), IsEmpty());
}

TEST(Diagnose, NamesTheRankThatDoesNotComeAndWhatItDoes) {
  for (const auto& [phase, component] :
       {std::pair("data", Component::kData), std::pair("forward", Component::kProgram),
        std::pair("checkpoint", Component::kStorage)}) {
    Job job;
    for (int rank : {0, 1, 3}) job.Waits(rank);
    job.rank(2).process.phase = phase;
    job.rank(2).process.phase_since_ns = kNow - 6 * kSecond;
    const Finding finding = job.Only();
    EXPECT_EQ(finding.fault, Fault::kHangOutside);
    EXPECT_EQ(finding.component, component) << phase;
    EXPECT_THAT(finding.culprits, ElementsAre(2));
    EXPECT_THAT(finding.victims, ElementsAre(0, 1, 3));
    EXPECT_THAT(absl::StrJoin(finding.evidence, "\n"), HasSubstr(phase));
    EXPECT_THAT(absl::StrJoin(finding.rejected, "\n"), HasSubstr("the network"));
  }
}

// Rank 2 computes while a reduction of its own runs: that call is no reason for its hang.
TEST(Diagnose, IsNotMisledByCallsUnderTheCompute) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) job.Waits(rank, 5);
  for (int rank : {0, 1, 3}) job.Waits(rank, 6);
  job.rank(2).process.phase = "backward";
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kHangOutside);
  EXPECT_THAT(finding.culprits, ElementsAre(2));
}

// 3 waits for 2 in one group, which waits for 1 in another, which computes.
// Both hang; of one whose host does not tell how it is, that is not known.
TEST(Diagnose, NamesTwoRanksThatDoNotComeAndSaysWhetherItIsEach) {
  Job job;
  job.Waits(0);
  job.Waits(3);
  for (int rank : {1, 2}) job.rank(rank).process.phase = "data";
  EXPECT_THAT(job.Only().culprits, ElementsAre(1, 2));
  EXPECT_TRUE(job.Only().each_is_culprit);
  job.rank(2).state = {};
  EXPECT_THAT(job.Only().culprits, ElementsAre(1, 2));
  EXPECT_FALSE(job.Only().each_is_culprit);
}

TEST(Diagnose, FollowsTheChainOfThoseWhoWait) {
  Job job;
  job.view.groups = {{"a", {2, 3}}, {"b", {1, 2}}, {"c", {0, 3}}};
  for (auto& [number, rank] : job.view.ranks) rank.next.clear();
  job.Waits(3, 0, "all_reduce", 1, "a");
  job.Waits(2, 0, "all_reduce", 1, "b");
  job.Waits(0, 0, "all_reduce", 1, "c");
  job.rank(1).process.phase = "forward";
  EXPECT_THAT(job.Only().culprits, ElementsAre(1));
}

TEST(Diagnose, NamesAStoppedRank) {
  Job job;
  for (int rank : {0, 1, 3}) job.Waits(rank);
  job.rank(2).state.state = 'T';
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kStoppedRank);
  EXPECT_THAT(finding.culprits, ElementsAre(2));
  EXPECT_THAT(finding.advice, HasSubstr("kill -CONT 1002"));
}

TEST(Diagnose, TellsTheDeadRankFromThoseThatItsLauncherEnded) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) {
    job.rank(rank).state.exists = false;
    job.rank(rank).process.reaped_ns = kNow;
    job.rank(rank).process.wait_status = rank == 1 ? 9 : 15;
    job.rank(rank).process.told_to_end = rank != 1;
  }
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kDeadRank);
  EXPECT_THAT(finding.culprits, ElementsAre(1));
  EXPECT_THAT(finding.evidence[0], HasSubstr("signal 9"));
  // Before the others are reaped, too.
  for (int rank : {0, 2, 3}) job.rank(rank).process.reaped_ns = 0;
  EXPECT_THAT(job.Only().culprits, ElementsAre(1));
}

TEST(Diagnose, NamesADeadRankOfAJobWithoutALauncher) {
  Job job;
  for (int rank : {0, 1, 3}) job.Waits(rank);
  job.rank(2).state.exists = false;
  EXPECT_EQ(job.Only().fault, Fault::kDeadRank);
}

TEST(Diagnose, NamesARankThatLeftInGoodOrder) {
  Job job;
  for (int rank : {0, 1, 3}) job.Waits(rank);
  job.view.ranks.erase(2);
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kLeftEarly);
  EXPECT_THAT(finding.culprits, ElementsAre(2));
}

// The end of a run under load: the last records of some have open calls, and a process or none is
// still on its way out.
TEST(Diagnose, SaysNothingOfRanksThatHaveAllEnded) {
  for (const bool one_lives : {false, true}) {
    Job job;
    job.Message(1, /*sends=*/true, 2);
    job.Waits(0);
    for (int rank = 0; rank < 4; ++rank) {
      if (rank == 3 && one_lives) continue;
      job.rank(rank).process.ended_ns = kNow - kSecond;
      job.rank(rank).process.phase.clear();
    }
    EXPECT_THAT(Diagnose(job.view), IsEmpty()) << one_lives;
    if (!one_lives) continue;
    job.Waits(3);  // for rank 2, which has not made the call
    job.rank(1).next["world"] = 6;
    EXPECT_EQ(job.Only().fault, Fault::kLeftEarly);
    EXPECT_THAT(job.Only().culprits, ElementsAre(2));
  }
}

// Rank 0 has ended, too, because its peer had gone; rank 2 took its ring along first.
TEST(Diagnose, NamesTheFirstThatLeft) {
  Job job;
  job.view.ranks.erase(2);
  job.rank(0).process.ended_ns = kNow - kSecond;
  job.rank(1).process.failed = true;
  job.rank(3).process.failed = true;
  EXPECT_THAT(job.Only().culprits, ElementsAre(2));
}

TEST(Diagnose, NamesTheMinorityWhoseCallDiffers) {
  Job job;
  for (int rank : {0, 1, 3}) job.Waits(rank);
  job.Waits(2, 5, "broadcast", 2);
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kDifferentCalls);
  EXPECT_THAT(finding.culprits, ElementsAre(2));
  EXPECT_THAT(absl::StrJoin(finding.evidence, "\n"), HasSubstr("broadcast #5"));
}

TEST(Diagnose, NamesTheCircleOfADeadlock) {
  Job job(2);
  job.view.groups = {{"a", {0, 1}}, {"b", {0, 1}}};
  for (auto& [number, rank] : job.view.ranks) rank.next.clear();
  job.Waits(0, 0, "barrier", 1, "a");
  job.Waits(1, 0, "barrier", 1, "b");
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kDeadlock);
  EXPECT_THAT(finding.culprits, ElementsAre(0, 1));
}

// Rank 1 sends to 2, which waits in a collective for 1.
TEST(Diagnose, NamesAReceiverThatDoesNotPost) {
  Job job;
  job.Message(1, true, 2);
  for (int rank : {0, 2, 3}) job.Waits(rank);
  job.FlowOf(1, 2, true, 1, 1, 0, 0);
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kReceiverNotPosting);
  EXPECT_THAT(finding.culprits, ElementsAre(2));
  EXPECT_THAT(finding.rejected[0], HasSubstr("the network"));
}

// G > T or T > D at the sender while everybody is in the call, and both engines turn: the path.
TEST(Diagnose, NamesTheFlowThatStandsStillInsideOfACall) {
  for (const auto& [transmitted, done] :
       {std::pair(0, 0), std::pair(2048, 0), std::pair(4096, 0)}) {
    Job job;
    for (int rank = 0; rank < 4; ++rank) job.Waits(rank);
    job.FlowOf(1, 2, true, 1, 0, transmitted, done);
    job.FlowOf(2, 1, false, 1, 0, transmitted, done);
    const Finding finding = job.Only();
    EXPECT_EQ(finding.fault, Fault::kStuckFlow);
    EXPECT_EQ(finding.component, Component::kNetwork);
    EXPECT_THAT(finding.culprits, ElementsAre(1, 2));
  }
}

// The clear-to-send is lost: the sender waits for it, and the receiver has posted.
TEST(Diagnose, NamesTheFlowWhoseClearToSendIsLost) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) job.Waits(rank);
  job.FlowOf(1, 2, true, 1, 1, 0, 0);
  job.FlowOf(2, 1, false, 1, 1, 0, 0);
  EXPECT_EQ(job.Only().fault, Fault::kStuckFlow);
  job.FlowOf(2, 1, false, 0, 0, 0, 0);  // it has not: then it is the receiver
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kReceiverNotPosting);
  EXPECT_THAT(finding.culprits, ElementsAre(2));
}

TEST(Diagnose, NamesARankWhoseCommunicationThreadIsHeldUp) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) job.Waits(rank);
  job.FlowOf(1, 3, true, 1, 0, 4096, 0);
  job.rank(3).process.alive_ns = kNow - 4 * kSecond;
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kReceiverNotPosting);
  EXPECT_EQ(finding.component, Component::kProcess);
  EXPECT_THAT(finding.culprits, ElementsAre(3));
}

TEST(Diagnose, SaysUnknownWithWhatItSees) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) job.Waits(rank);
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kUnknown);
  EXPECT_THAT(finding.evidence, SizeIs(4));
}

TEST(Diagnose, NamesASlowRankByItsOwnTime) {
  Job job;
  for (int rank : {0, 1, 3}) job.Steps(rank, 0.05);
  job.Steps(2, 0.08);
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kSlowRank);
  EXPECT_EQ(finding.component, Component::kDevice);
  EXPECT_THAT(finding.culprits, ElementsAre(2));
  EXPECT_THAT(absl::StrJoin(finding.evidence, "\n"), HasSubstr("phase forward"));
}

TEST(Diagnose, TellsSlowDataAndAHostWithoutCoresFromASlowDevice) {
  Job data;
  for (int rank : {0, 1, 3}) data.Steps(rank, 0.05);
  data.Steps(2, 0.08, "data");
  EXPECT_EQ(data.Only().fault, Fault::kSlowData);
  Job host;
  for (int rank : {0, 1, 3}) host.Steps(rank, 0.05);
  host.Steps(2, 0.08);
  host.rank(2).state.run_queue_seconds = 40;
  EXPECT_EQ(host.Only().component, Component::kHost);
}

// One long step, and a tenth of noise, are no slow rank; nor is a stage with more layers.
TEST(Diagnose, AllowsForOneLongStepAndForUnequalStages) {
  Job pause;
  for (int rank = 0; rank < 4; ++rank) pause.Steps(rank, 0.05);
  pause.rank(2).steps[3].seconds = {{"forward", 0.1}};
  pause.rank(1).steps[4].seconds["wait_all_reduce"] = 0.046;
  EXPECT_THAT(Diagnose(pause.view), IsEmpty());
  Job stages;
  stages.view.mesh = "tp1,dp2,pp2";
  for (int rank : {0, 1}) stages.Steps(rank, 0.05);
  for (int rank : {2, 3}) stages.Steps(rank, 0.08);
  EXPECT_THAT(Diagnose(stages.view), IsEmpty());
}

// On a host whose cores are short every rank strays by a fifth: three unlucky steps are no fault,
// but twice the time is.
TEST(Diagnose, WantsMoreOfARankWhereAllStray) {
  const double strays[] = {1.2, 0.85, 1.0, 0.8, 1.15};
  for (const double own : {1.2, 2.2}) {
    Job job;
    for (int rank = 0; rank < 4; ++rank) {
      job.Steps(rank, 0.05);
      for (size_t step = 0; step < 5; ++step) {
        const double factor = rank == 2 ? own : strays[(step + static_cast<size_t>(rank)) % 5];
        StepTimes& times = job.rank(rank).steps[step];
        times.seconds["forward"] = 0.04 * factor;
        times.seconds["wait_all_reduce"] = 0.1 - 0.01 - 0.04 * factor;
      }
    }
    EXPECT_THAT(Diagnose(job.view), SizeIs(own > 2 ? 1 : 0)) << own;
  }
}

TEST(Diagnose, NamesASlowFlowAmongItsSiblings) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) {
    job.Steps(rank, 0.05);
    job.FlowOf(rank, (rank + 1) % 4, true, 0, 0, 4096, 4096);
    Flow& flow = job.rank(rank).flows[{(rank + 1) % 4, true}];
    flow.samples = 50;
    flow.busy = rank == 1 ? 0.9 : 0.1;
  }
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kSlowFlow);
  EXPECT_THAT(finding.culprits, ElementsAre(1, 2));
}

TEST(Diagnose, NamesTheRankWhoseLossIsNotFinite) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) job.Steps(rank, 0.05);
  job.rank(3).steps.back().own_is_finite = false;
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kNotFinite);
  EXPECT_THAT(finding.culprits, ElementsAre(3));
}

// A step that was left out: the loss, which is that of the job, is on no rank a number.
TEST(Diagnose, SaysOfALossThatIsNotFiniteOnAllRanksNoneOfThem) {
  for (const double loss : {std::nan(""), HUGE_VAL}) {
    Job job;
    for (int rank = 0; rank < 4; ++rank) {
      job.Steps(rank, 0.05);
      for (StepTimes& step : job.rank(rank).steps) step.loss = step.step == 4 ? loss : 3;
    }
    EXPECT_THAT(Diagnose(job.view), IsEmpty()) << loss;
  }
}

// ---- What counters, settings and the program say

// All ranks read `healthy`, rank 2 then `sick`.
Job Counted(const std::string& source, const std::string& name, double healthy, double sick) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) {
    job.Steps(rank, 0.05);
    job.rank(rank).readings[{source, name}].Take(healthy, kSecond);
  }
  job.rank(2).readings[{source, name}].Take(sick, kNow - 2 * kSecond);
  return job;
}

TEST(Diagnose, NamesWhatACounterTells) {
  const struct {
    const char *source, *name;
    double healthy, harmless, sick;
    Fault fault;
    Component component;
  } rows[] = {
      {"gpu/0", "DCGM_FI_DEV_XID_ERRORS", 0, 0, 79, Fault::kDeviceError, Component::kDevice},
      {"gpu/0", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 2, 2, 3, Fault::kDeviceError, Component::kDevice},
      {"cgroup", "oom_kill", 4, 4, 5, Fault::kOutOfMemory, Component::kMemory},
      {"nic/a/1", "rx_icrc_encapsulated", 7, 9, 30, Fault::kCorruptingLink, Component::kNetwork},
      {"nic/a/1", "out_of_sequence", 500, 600, 900, Fault::kReordering, Component::kNetwork},
      {"nic/a/1", "link_downed", 3, 4, 5, Fault::kLinkFlaps, Component::kNic},
      {"nic/a/1", "qp_errors", 0, 0, 1, Fault::kReconnected, Component::kNic},
      {"nic/a/1", "pauses_sent", 100, 900, 20100, Fault::kSlowNic, Component::kNic},
      {"observer", "rows_dropped", 0, 0, 9, Fault::kObserverDegraded, Component::kProgram},
      {"progress", "gaps", 0, 0, 2, Fault::kLateThread, Component::kCpu},
      {"setting", "mtu_bytes", 4096, 4096, 1024, Fault::kDifferentSettings, Component::kProgram},
      {"job", "epoch", 2, 2, 1, Fault::kStaleRank, Component::kProcess},
  };
  for (const auto& row : rows) {
    EXPECT_THAT(Diagnose(Counted(row.source, row.name, row.healthy, row.harmless).view), IsEmpty())
        << row.name;
    Job job = Counted(row.source, row.name, row.healthy, row.sick);
    const Finding finding = job.Only();
    EXPECT_EQ(finding.fault, row.fault) << row.name;
    EXPECT_EQ(finding.component, row.component) << row.name;
    EXPECT_THAT(finding.culprits, ElementsAre(2)) << row.name;
    EXPECT_THAT(finding.evidence, testing::Not(IsEmpty())) << row.name;
  }
}

TEST(Diagnose, TellsAPortThatIsDownFromOneThatFlaps) {
  Job job = Counted("nic/a/1", "link_downed", 0, 1);
  job.rank(2).readings[{"nic/a/1", "port_active"}].Take(0, kNow);
  EXPECT_EQ(job.Only().fault, Fault::kNicDown);
}

// Marked packets, and pauses of a switch, blame no rank, and none of its flows.
TEST(Diagnose, BlamesNobodyForCongestion) {
  for (const char* counter : {"np_cnp_sent", "pauses_received"}) {
    Job job = Counted("nic/a/1", counter, 0, 50000);
    const Finding finding = job.Only();
    EXPECT_EQ(finding.fault, Fault::kCongestion);
    EXPECT_THAT(finding.culprits, IsEmpty());
    EXPECT_THAT(finding.victims, ElementsAre(2));
  }
}

TEST(Diagnose, NamesAReplicaThatDiffersAndALossThatJumps) {
  Job replica;
  for (int rank = 0; rank < 4; ++rank) {
    replica.Steps(rank, 0.05);
    replica.rank(rank).checksums = {{4, 17}, {5, rank == 3 ? 18u : 19u}};
  }
  EXPECT_EQ(replica.Only().fault, Fault::kReplicaDiffers);
  EXPECT_THAT(replica.Only().culprits, ElementsAre(3));
  Job loss;
  for (int rank = 0; rank < 4; ++rank) {
    loss.Steps(rank, 0.05);
    for (StepTimes& step : loss.rank(rank).steps) step.loss = rank == 1 && step.step == 4 ? 30 : 3;
  }
  EXPECT_EQ(loss.Only().fault, Fault::kLossSpike);
  EXPECT_THAT(loss.Only().culprits, ElementsAre(1));
}

TEST(Diagnose, NamesWhatTheProgramSaysOfItsErrors) {
  const struct {
    const char *code, *place;
    Fault fault;
  } rows[] = {{"RESOURCE_EXHAUSTED", "checkpoint", Fault::kSaveFailed},
              {"DATA_LOSS", "checkpoint", Fault::kBadShard},
              {"UNAVAILABLE", "store", Fault::kControlPlane}};
  for (const auto& row : rows) {
    Job job;
    for (int rank = 0; rank < 4; ++rank) job.Steps(rank, 0.05);
    job.rank(1).errors.push_back({kNow, 6, row.code, row.place, "text"});
    EXPECT_EQ(job.Only().fault, row.fault) << row.place;
  }
  Job job;
  for (int rank = 0; rank < 4; ++rank) job.Steps(rank, 0.05);
  job.rank(1).errors = {{kNow, 6, "INVALID_ARGUMENT", "step", "text"},
                        {kNow, 7, "INVALID_ARGUMENT", "step", "text"}};
  EXPECT_THAT(Diagnose(job.view), IsEmpty());  // it went on between
  job.rank(1).errors[1].step = 6;
  EXPECT_EQ(job.Only().fault, Fault::kRepeatedError);
}

TEST(Diagnose, TellsALivelockFromAHang) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) {
    job.Steps(rank, 0.05);
    job.rank(rank).phases_of_last_step = 6;
  }
  job.view.now_ns = kNow + 3 * kSecond;
  for (int rank : {0, 1, 3}) job.Waits(rank);
  job.rank(2).moved_ns = job.view.now_ns;
  job.rank(2).process.phase = "forward";
  job.rank(2).phases_in_step = 100;
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kLivelock);
  EXPECT_THAT(finding.culprits, ElementsAre(2));
}

TEST(Diagnose, NamesTheHostWhereAllItsRanksAreStopped) {
  Job job;
  for (int rank : {0, 1}) job.Waits(rank);
  for (int rank : {2, 3}) {
    job.rank(rank).process.host = "other";
    job.rank(rank).state.state = 'T';
  }
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kStoppedHost);
  EXPECT_THAT(finding.culprits, ElementsAre(2, 3));
  job.rank(3).state.state = 'S';
  EXPECT_EQ(job.Only().fault, Fault::kStoppedRank);
}

TEST(Diagnose, NamesAPathThatIsBrokenBothWays) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) job.Waits(rank);
  job.FlowOf(1, 2, true, 1, 0, 4096, 0);
  EXPECT_EQ(job.Only().fault, Fault::kStuckFlow);
  job.FlowOf(2, 1, true, 1, 0, 4096, 0);
  EXPECT_EQ(job.Only().fault, Fault::kBrokenPath);
}

// Flows of a ring, healthy but for what `spoil` does to some.
template <typename Spoil>
Job Ring(Spoil spoil) {
  Job job(6);
  for (int rank = 0; rank < 6; ++rank) {
    job.Steps(rank, 0.05);
    for (int peer : {(rank + 1) % 6, (rank + 5) % 6}) {
      job.FlowOf(rank, peer, true, 0, 0, 4096, 4096);
      Flow& flow = job.rank(rank).flows[{peer, true}];
      flow.samples = 50;
      flow.busy = 0.1;
      flow.rtt_us = 20;
      spoil(rank, peer, &flow);
    }
  }
  return job;
}

TEST(Diagnose, TellsASlowNicFromASlowPathAndALossyOne) {
  Job nic = Ring([](int rank, int peer, Flow* flow) {
    if (rank == 2 || peer == 2) flow->busy = 0.9;
  });
  EXPECT_EQ(nic.Only().fault, Fault::kSlowNic);
  EXPECT_THAT(nic.Only().culprits, ElementsAre(2));
  Job path = Ring([](int rank, int peer, Flow* flow) {
    if (rank == 2 && peer == 3) flow->rtt_us = 20000;
  });
  EXPECT_EQ(path.Only().fault, Fault::kSlowFlow);
  EXPECT_THAT(path.Only().culprits, ElementsAre(2, 3));
  Job lossy = Ring([](int rank, int peer, Flow* flow) {
    flow->repeats_before = flow->record.repeats = 100;
    if (rank == 2 && peer == 3) flow->record.repeats = 140;
  });
  EXPECT_EQ(lossy.Only().fault, Fault::kLossyLink);
  EXPECT_THAT(lossy.Only().culprits, ElementsAre(2, 3));
}

// Experts that get twice the tokens take twice the time; the same time for the same tokens is slow.
TEST(Diagnose, AllowsForWorkThatIsUneven) {
  for (const double work : {8192.0, 4096.0}) {
    Job job;
    for (int rank = 0; rank < 4; ++rank) {
      job.Steps(rank, rank == 2 ? 0.09 : 0.05, "experts");
      for (StepTimes& step : job.rank(rank).steps) {
        step.seconds["experts"] += 0.031;
        step.seconds["forward"] -= 0.031;
        step.work["experts"] = rank == 2 ? work : 4096;
      }
    }
    EXPECT_THAT(Diagnose(job.view), SizeIs(work > 5000 ? 0 : 1)) << work;
  }
}

TEST(Diagnose, NamesARankThatIsSlowInOneStepOfFour) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) {
    for (int64_t step = 1; step <= 16; ++step) {
      const bool slow = rank == 2 && step % 4 == 1;
      StepTimes times{.step = step, .start_ns = step * kSecond, .end_ns = step * kSecond + kSecond};
      times.seconds = {{"forward", slow ? 0.8 : 0.4}, {"wait_all_reduce", slow ? 0.2 : 0.6}};
      job.rank(rank).steps.push_back(times);
      job.rank(rank).moved_ns = kNow;
    }
  }
  const Finding finding = job.Only();
  EXPECT_EQ(finding.fault, Fault::kSlowRank);
  EXPECT_THAT(finding.culprits, ElementsAre(2));
  EXPECT_THAT(finding.evidence[0], HasSubstr("one step in 4"));
}

// Ranks that were started anew do steps again, each as many as it had lost.
TEST(Diagnose, CountsAStepThatARankDidTwiceAsOne) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) job.Steps(rank, 0.05);
  job.rank(0).steps.push_back(job.rank(0).steps[3]);  // step 4, which rank 1 has not ended
  job.rank(1).steps.resize(3);
  EXPECT_THAT(Diagnose(job.view), IsEmpty());
}

TEST(Diagnose, NamesTheStorageOfARankWhoseCheckpointsTakeLong) {
  Job job;
  for (int rank = 0; rank < 4; ++rank) {
    job.Steps(rank, 0.05);
    job.rank(rank).steps[3].seconds["checkpoint"] = rank == 1 ? 0.4 : 0.01;
    job.rank(rank).steps[3].end_ns += kSecond / 2;
    job.rank(rank).steps[3].seconds["wait_all_reduce"] += rank == 1 ? 0.1 : 0.49;
  }
  EXPECT_EQ(job.Only().fault, Fault::kSlowStorage);
  EXPECT_THAT(job.Only().culprits, ElementsAre(1));
}

}  // namespace
}  // namespace weft::observe
