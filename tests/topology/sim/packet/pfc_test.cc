// PFC: thresholds, propagation, headroom, deadlock. And ECN.
#include "tests/topology/sim/packet/fabrics.h"

namespace weft::topology {
namespace {

constexpr int kSenders = 8;
constexpr int64_t kXoff = 50'000;

PacketOptions WithPfc() {
  PacketOptions options;
  options.pfc.enabled = true;
  options.pfc.xoff = Bytes(kXoff);
  return options;
}

SimulationResult Incast(const PacketOptions& options) {
  Fabric fabric = Star(std::vector<double>(kSenders + 1, 100), absl::Microseconds(1));
  Workload workload;
  for (int i = 1; i <= kSenders; ++i) workload.Add(Send(i, 0, 4096 * 300));
  return Simulated(fabric, workload, options);
}

TEST(Pfc, PausesAboveItsThresholdAndLosesNothingWithTheHeadroomOfTheFormula) {
  SimulationResult result = Incast(WithPfc());
  EXPECT_EQ(result.unfinished, 0);
  EXPECT_EQ(Dropped(result), 0);
  EXPECT_EQ(result.retransmissions, 0);
  EXPECT_EQ(result.deadlock, "");
  int64_t headroom = HeadroomFor(Bandwidth::GigabitsPerSecond(100), absl::Microseconds(1),
                                 Bytes(kFrame), absl::ZeroDuration())
                         .count();
  int64_t most = 0;
  for (const LinkResult& link : result.links) most = std::max(most, link.queue_max.count());
  // All ingresses fill alike: each went above the threshold, none beyond its headroom.
  EXPECT_GT(most, kSenders * kXoff);
  EXPECT_LE(most, kSenders * (kXoff + headroom));
}

TEST(Pfc, DoesNotPauseBelowItsThreshold) {
  PacketOptions options = WithPfc();
  options.pfc.xoff = Bytes(4096 * 400);  // more than a sender ever sends
  SimulationResult result = Incast(options);
  for (const LinkResult& link : result.links) EXPECT_EQ(link.paused, absl::ZeroDuration());
}

TEST(Pfc, DropsWhenTheHeadroomIsTooSmall) {
  PacketOptions options = WithPfc();
  options.pfc.headroom = Bytes(2 * kFrame);
  options.limit = absl::Milliseconds(1);
  EXPECT_GT(Dropped(Incast(options)), 0);
}

TEST(Pfc, DynamicThresholdKeepsWithinTheMemoryOfTheSwitch) {
  PacketOptions options = WithPfc();
  options.pfc.xoff = Bytes(0);
  options.switch_buffer = Bytes(2'000'000);
  SimulationResult result = Incast(options);
  EXPECT_EQ(Dropped(result), 0);
  EXPECT_EQ(result.unfinished, 0);
  absl::Duration paused;
  for (const LinkResult& link : result.links) paused += link.paused;
  EXPECT_GT(paused, absl::ZeroDuration());
}

// source - switch - sink, the last link slow: how long the source's first pause lasts.
absl::Duration FirstPause(const PacketOptions& options) {
  FabricBuilder builder;
  NodeId source = AddNode(builder, "source", NodeKind::kHost);
  NodeId sink = AddNode(builder, "sink", NodeKind::kHost);
  NodeId middle = AddNode(builder, "middle", NodeKind::kSwitch);
  Connect(builder, source, middle, 100, absl::Microseconds(1), 0);
  Connect(builder, middle, sink, 10, absl::Microseconds(1), 0);
  Fabric fabric = *std::move(builder).Build();
  struct First : PacketObserver {
    void Paused(LinkId, absl::Duration from, absl::Duration to) override {
      if (length == absl::ZeroDuration()) length = to - from;
    }
    absl::Duration length;
  } first;
  PacketOptions observed = options;
  observed.observer = &first;
  Workload workload;
  workload.Add(Send(0, 1, 4096 * 500));
  Simulated(fabric, workload, observed);
  return first.length;
}

// The slow link empties the ingress: each byte of the offset is a byte's time more of pause. Within
// a frame at each end.
TEST(Pfc, ResumesThatMuchBelowItsThreshold) {
  PacketOptions options = WithPfc();
  options.pfc.xoff = Bytes(200'000);
  options.pfc.resume_offset = Bytes(20'000);
  absl::Duration early = FirstPause(options);
  options.pfc.resume_offset = Bytes(120'000);
  absl::Duration late = FirstPause(options);
  double frame = kFrame * 0.8e-3;  // us at 10 Gb/s
  EXPECT_NEAR(absl::ToDoubleMicroseconds(late - early), 100'000 * 0.8e-3, 2 * frame);
}

TEST(Pfc, HeadroomHoldsWhatArrivesUntilTheNeighbourReacts) {
  PacketOptions options = WithPfc();
  options.pfc.reaction = absl::Microseconds(10);
  SimulationResult result = Incast(options);
  EXPECT_EQ(Dropped(result), 0);
  EXPECT_EQ(result.unfinished, 0);
  options.limit = absl::Milliseconds(1);
  options.pfc.headroom = HeadroomFor(Bandwidth::GigabitsPerSecond(100), absl::Microseconds(1),
                                     Bytes(kFrame), absl::ZeroDuration());
  EXPECT_GT(Dropped(Incast(options)), 0);
}

// A link fails when its headroom is fullest, and comes back when all of that has left.
TEST(Pfc, HasItsWholeHeadroomAgainAfterALinkHasFailed) {
  Fabric fabric = Star({10, 100}, absl::Microseconds(1));
  struct First : PacketObserver {
    void Paused(LinkId, absl::Duration from, absl::Duration) override {
      first = std::min(first, from);
    }
    absl::Duration first = absl::InfiniteDuration();
  } observer;
  Workload workload;
  workload.Add(Send(1, 0, 4096 * 200));
  PacketOptions options = WithPfc();
  options.observer = &observer;
  Simulated(fabric, workload, options);
  LinkId link = *fabric.FindLink(*fabric.Find("h1"), *fabric.Find("hub"));
  absl::Duration down = observer.first + absl::Nanoseconds(1500);
  options.faults.push_back({down, link, LinkFault::Kind::kDown, {}, true});
  options.faults.push_back({down + absl::Microseconds(200), link, LinkFault::Kind::kUp, {}, true});
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_EQ(result.unfinished, 0);
  EXPECT_EQ(LinkBetween(fabric, result, "hub", "h0").dropped, 0);
}

// Two hosts fill the slow link of another at the first leaf, which pauses the first port of host 0.
// What host 0 then sends to host 1 has another leaf, and takes no longer than without the pause.
TEST(Pfc, PausesOnePortOfANicAlone) {
  FabricBuilder builder;
  NodeId source = AddNode(builder, "source", NodeKind::kHost);
  NodeId target = AddNode(builder, "target", NodeKind::kHost);
  NodeId slow = AddNode(builder, "slow", NodeKind::kHost);
  NodeId first = AddNode(builder, "first", NodeKind::kSwitch);
  NodeId second = AddNode(builder, "second", NodeKind::kSwitch);
  Connect(builder, source, first, 100, absl::Microseconds(1), 0);
  Connect(builder, source, second, 100, absl::Microseconds(1), 0);
  Connect(builder, slow, first, 1, absl::Microseconds(1), 0);
  Connect(builder, target, second, 100, absl::Microseconds(1), 0);
  Fabric fabric = *std::move(builder).Build();
  PacketOptions options = WithPfc();
  Workload alone, both;
  alone.Add(Send(0, 1, 4096 * 200, absl::Microseconds(50)));
  both.Add(Send(0, 1, 4096 * 200, absl::Microseconds(50)));
  // As much as the leaf lets in before it pauses, and less than would wait at the port.
  both.Add(Send(0, 2, 4096 * 14));
  SimulationResult paused = Simulated(fabric, both, options);
  EXPECT_GT(LinkBetween(fabric, paused, "source", "first").paused, absl::Microseconds(10));
  EXPECT_EQ(paused.operations[0].picoseconds,
            Simulated(fabric, alone, options).operations[0].picoseconds);
}

// A slow last link: the pause travels back from switch to switch to the source, in this order.
TEST(Pfc, PropagatesOverEveryHopToTheSource) {
  FabricBuilder builder;
  NodeId source = AddNode(builder, "source", NodeKind::kHost);
  NodeId sink = AddNode(builder, "sink", NodeKind::kHost);
  std::vector<NodeId> line;
  for (int i = 0; i < 3; ++i)
    line.push_back(AddNode(builder, absl::StrCat("s", i), NodeKind::kSwitch));
  Connect(builder, source, line[0], 100, absl::Microseconds(1), 0);
  Connect(builder, line[0], line[1], 100, absl::Microseconds(1));
  Connect(builder, line[1], line[2], 100, absl::Microseconds(1));
  Connect(builder, line[2], sink, 10, absl::Microseconds(1), 0);
  Fabric fabric = *std::move(builder).Build();

  struct FirstPauses : PacketObserver {
    void Paused(LinkId link, absl::Duration from, absl::Duration) override {
      first.emplace_back(from, link);
    }
    std::vector<std::pair<absl::Duration, LinkId>> first;
  } observer;
  Workload workload;
  workload.Add(Send(0, 1, 4096 * 500));
  PacketOptions options = WithPfc();
  options.observer = &observer;
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_EQ(Dropped(result), 0);
  EXPECT_EQ(result.unfinished, 0);
  auto first_pause = [&](const char* a, const char* b) {
    LinkId link = *fabric.FindLink(*fabric.Find(a), *fabric.Find(b));
    absl::Duration first = absl::InfiniteDuration();
    for (auto& [from, which] : observer.first) {
      if (which == link) first = std::min(first, from);
    }
    return first;
  };
  EXPECT_LT(first_pause("s1", "s2"), first_pause("s0", "s1"));
  EXPECT_LT(first_pause("s0", "s1"), first_pause("source", "s0"));
  EXPECT_LT(first_pause("source", "s0"), absl::InfiniteDuration());
  // Each ingress holds its threshold before it pauses: net 90 Gb/s fill it, 90 less 0 after that.
  double fill = static_cast<double>(kXoff) / (90e9 / 8) * 1e6;  // us
  double began = absl::ToDoubleMicroseconds(first_pause("s1", "s2"));
  EXPECT_NEAR(began, 3 + 3 * 0.3328 + fill + 1, 1.5);
}

// Every switch of a ring sends to the next but one: each link waits for the next.
TEST(Pfc, NamesTheCircleOfADeadlock) {
  constexpr int kSwitches = 5;
  FabricBuilder builder;
  std::vector<NodeId> hosts, switches;
  for (int i = 0; i < kSwitches; ++i) {
    hosts.push_back(AddNode(builder, absl::StrCat("h", i), NodeKind::kHost));
  }
  for (int i = 0; i < kSwitches; ++i) {
    switches.push_back(AddNode(builder, absl::StrCat("s", i), NodeKind::kSwitch));
  }
  for (size_t i = 0; i < kSwitches; ++i) {
    Connect(builder, hosts[i], switches[i], 100, absl::Microseconds(1), 0);
    Connect(builder, switches[i], switches[(i + 1) % kSwitches], 100, absl::Microseconds(1));
  }
  Fabric fabric = *std::move(builder).Build();
  Workload workload;
  for (int i = 0; i < kSwitches; ++i) workload.Add(Send(i, (i + 2) % kSwitches, 4096 * 1000));
  PacketOptions options = WithPfc();
  options.limit = absl::Milliseconds(5);
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_GT(result.unfinished, 0);
  for (int i = 0; i < kSwitches; ++i) {
    std::string link = absl::StrCat("s", i, ">s", (i + 1) % kSwitches);
    EXPECT_NE(result.deadlock.find(link), std::string::npos) << result.deadlock;
  }
}

TEST(Ecn, MarksNothingUpToTheLowerThresholdAndAllAboveTheUpper) {
  PacketOptions options;
  options.ecn.enabled = true;
  options.ecn.reference = Bandwidth();
  options.ecn.min = options.ecn.max = Bytes(kSenders * 300 * kFrame);
  SimulationResult none = Incast(options);
  options.ecn.min = options.ecn.max = Bytes(0);
  SimulationResult all = Incast(options);
  int64_t marked_none = 0, marked_all = 0;
  for (const LinkResult& link : none.links) marked_none += link.marked;
  for (const LinkResult& link : all.links) marked_all += link.marked;
  EXPECT_EQ(marked_none, 0);
  // All but those that found no queue, or left none behind.
  EXPECT_GE(marked_all, kSenders * 300 - 16);
}

// Frames that wait at a port of a NIC are in no switch.
TEST(Ecn, MarksNothingInANic) {
  FabricBuilder builder;
  NodeId source = AddNode(builder, "source", NodeKind::kHost);
  NodeId target = AddNode(builder, "target", NodeKind::kHost);
  NodeId other = AddNode(builder, "other", NodeKind::kHost);
  NodeId first = AddNode(builder, "first", NodeKind::kSwitch);
  NodeId second = AddNode(builder, "second", NodeKind::kSwitch);
  Connect(builder, source, first, 10, absl::Microseconds(1), 0);
  Connect(builder, source, second, 400, absl::Microseconds(1), 0);
  Connect(builder, target, first, 400, absl::Microseconds(1), 0);
  Connect(builder, other, second, 400, absl::Microseconds(1), 0);
  Fabric fabric = *std::move(builder).Build();
  Workload workload;
  workload.Add(Send(0, 1, 4096 * 100));
  workload.Add(Send(0, 2, 4096 * 100));
  PacketOptions options;
  options.ecn.enabled = true;
  SimulationResult result = Simulated(fabric, workload, options);
  const LinkResult& port = LinkBetween(fabric, result, "source", "first");
  EXPECT_GT(port.queue_max, Bytes(kFrame));
  EXPECT_EQ(port.marked, 0);
}

// A window more than the path holds keeps a queue of one length, and every packet that leaves it is
// marked with the probability of that length. Within 10 %.
TEST(Ecn, MarksWithAProbabilityThatGrowsLinearlyBetweenItsThresholds) {
  Fabric fabric = Star({10, 100}, absl::Microseconds(1));
  constexpr int kPackets = 20'000;
  Workload workload;
  workload.Add(Send(1, 0, int64_t{4096} * kPackets));
  for (int frames : {50, 100, 150}) {
    PacketOptions options;
    options.transport = TransportKind::kSelective;
    options.window = Bytes(frames * kFrame);
    options.timeout = absl::Milliseconds(10);
    options.ecn.enabled = true;
    options.ecn.reference = Bandwidth();
    options.ecn.min = Bytes(20 * kFrame);
    options.ecn.max = Bytes(220 * kFrame);
    options.ecn.probability_max = 0.5;
    SimulationResult result = Simulated(fabric, workload, options);
    const LinkResult& last = LinkBetween(fabric, result, "hub", "h0");
    double behind = last.queue_mean - kFrame;  // when one leaves, it is not behind itself
    double expected = 0.5 * (behind - 20 * kFrame) / (200 * kFrame);
    EXPECT_NEAR(static_cast<double>(last.marked) / kPackets / expected, 1, 0.1) << frames;
  }
}

}  // namespace
}  // namespace weft::topology
