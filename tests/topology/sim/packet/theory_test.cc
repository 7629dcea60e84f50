// The packet level against formulas: each test states its own, and the tolerance.
#include <cmath>

#include "base/random.h"
#include "tests/topology/sim/packet/fabrics.h"

namespace weft::topology {
namespace {

// n packets over h links of one speed: h serialisations for the first, one for each other, and the
// delays. Exact, in picoseconds.
TEST(StoreAndForward, TakesWhatTheSumOfItsPartsTakesToThePicosecond) {
  Fabric fabric = LeafSpine(2, 2, 1);  // 400 Gb/s: 20 ps a byte; 1 us a cable
  for (int64_t packets : {1, 2, 57}) {
    Workload workload;
    workload.Add(Send(0, 3, packets * 4096));
    SimulationResult result = Simulated(fabric, workload, PacketOptions());
    int64_t links = 4;
    EXPECT_EQ(result.operations[0].picoseconds,
              links * 1'000'000 + (links + packets - 1) * kFrame * 20);
    EXPECT_EQ(result.link_traversals, packets * links * 2);  // with the acknowledgements
  }
}

TEST(StoreAndForward, CountsALastPacketThatIsNotFull) {
  Fabric fabric = Star({400, 400}, absl::Microseconds(1));
  Workload workload;
  workload.Add(Send(0, 1, 4096 + 1000));
  SimulationResult result = Simulated(fabric, workload, PacketOptions());
  // The short one waits behind the full one, then crosses two links.
  EXPECT_EQ(result.operations[0].picoseconds, 2'000'000 + (kFrame + kFrame + 1064) * 20);
}

// Messages of one connection leave no gap between them: together they take what one of their length
// takes. Exact, in picoseconds.
TEST(StoreAndForward, TakesAsLongForMessagesInOrderAsForOneOfTheirLength) {
  constexpr int kMessages = 10, kPackets = 2;
  Fabric fabric = LeafSpine(2, 2, 1);
  for (TransportKind transport : {TransportKind::kGoBackN, TransportKind::kSelective}) {
    PacketOptions options;
    options.transport = transport;
    Workload one, many;
    one.Add(Send(0, 3, kMessages * kPackets * 4096));
    for (int i = 0; i < kMessages; ++i) {
      Operation message = Send(0, 3, kPackets * 4096);
      message.in_order = true;
      many.Add(message);
    }
    SimulationResult result = Simulated(fabric, many, options);
    EXPECT_EQ(result.operations.back().picoseconds,
              Simulated(fabric, one, options).operations[0].picoseconds);
  }
}

// All sources of a ring know that all has arrived one acknowledgement after the last arrival.
TEST(StoreAndForward, CountsTheAcknowledgementsOfARing) {
  Fabric fabric = Star({400, 400}, absl::Microseconds(1));
  Workload workload;
  uint32_t ring = workload.AddRing({{NodeId(0), 0}, {NodeId(1), 0}});
  workload.Add({.kind = OperationKind::kRing, .bytes = Bytes(4096), .ring = ring, .steps = 2});
  SimulationResult result = Simulated(fabric, workload, PacketOptions());
  const OperationResult& whole = result.operations[0];
  EXPECT_NEAR(absl::ToDoubleNanoseconds(whole.acknowledged - whole.ended), 2000 + 2 * 64 * 0.02,
              0.5);
}

// No link loses anything, however long it is.
TEST(Timeout, IsLongerThanTheRoundTripUnlessGiven) {
  Fabric fabric = Star({100, 100}, absl::Milliseconds(2));
  Workload workload;
  workload.Add(Send(0, 1, 4096 * 100));
  PacketOptions options;
  for (TransportKind transport :
       {TransportKind::kGoBackN, TransportKind::kSelective, TransportKind::kCredit}) {
    options.transport = transport;
    options.timeout = absl::ZeroDuration();
    EXPECT_EQ(Simulated(fabric, workload, options).retransmissions, 0);
    options.timeout = absl::Milliseconds(1);
    EXPECT_GT(Simulated(fabric, workload, options).retransmissions, 0);
  }
}

// k S / B: the last link is never idle once the first packet is there.
TEST(Incast, EndsWithinAPercentOfWhatTheLastLinkNeeds) {
  constexpr int kSenders = 16;
  Fabric fabric = Star(std::vector<double>(kSenders + 1, 100), absl::Microseconds(1));
  Workload workload;
  for (int i = 1; i <= kSenders; ++i) workload.Add(Send(i, 0, 4096 * 200));
  PacketOptions options;
  options.pfc.enabled = true;
  options.pfc.xoff = Bytes(100'000);
  SimulationResult result = Simulated(fabric, workload, options);
  double bound = kSenders * 200.0 * kFrame * 80e-6;  // us
  EXPECT_EQ(result.unfinished, 0);
  EXPECT_GE(absl::ToDoubleMicroseconds(result.end), bound);
  EXPECT_LE(absl::ToDoubleMicroseconds(result.end), bound * 1.01);
  EXPECT_EQ(Dropped(result), 0);
}

// Pollaczek and Khinchine for M/D/1: rho^2 / (2 (1 - rho)) wait on average. Within 8 %.
TEST(Queue, IsAsLongOnAverageAsThatOfMD1) {
  for (double load : {0.3, 0.6, 0.8}) {
    std::vector<double> speeds(33, 10'000);  // sources hardly delay their packets
    speeds[0] = 100;
    Fabric fabric = Star(speeds, absl::Nanoseconds(100));
    Workload workload;
    Random random(7);
    double service = kFrame * 80e-3;  // ns
    double now = 0;
    for (int i = 0; i < 60'000; ++i) {
      now += -std::log(1 - random.Uniform()) * service / load;
      workload.Add(Send(1 + static_cast<int>(random.Below(32)), 0, 4096, absl::Nanoseconds(now)));
    }
    SimulationResult result = Simulated(fabric, workload, PacketOptions());
    double mean = LinkBetween(fabric, result, "hub", "h0").queue_mean / kFrame;
    double expected = load * load / (2 * (1 - load));
    EXPECT_NEAR(mean / expected, 1, 0.08) << "load " << load;
  }
}

// P(max <= k) = N! M^-N [x^N] (sum_{j<=k} x^j / j!)^M, summed to the mean.
double ExpectedMaxLoad(int flows, int paths) {
  double mean = 0;
  for (int k = 0; k < flows; ++k) {
    std::vector<double> all(static_cast<size_t>(flows) + 1, 0.0);
    all[0] = 1;
    for (int path = 0; path < paths; ++path) {
      std::vector<double> next(all.size(), 0.0);
      for (size_t i = 0; i < all.size(); ++i) {
        double term = all[i];
        for (size_t j = 0; j <= static_cast<size_t>(k) && i + j < all.size(); ++j) {
          next[i + j] += term;
          term /= static_cast<double>(j + 1);
        }
      }
      all = next;
    }
    double probability = all.back();
    for (int i = 1; i <= flows; ++i) probability *= static_cast<double>(i) / paths;
    mean += 1 - probability;
  }
  return mean;
}

// Within 4 %, over 300 seeds.
TEST(Ecmp, PutsAsManyFlowsOnOneLinkAsBallsIntoBins) {
  constexpr int kFlows = 16;
  EXPECT_NEAR(ExpectedMaxLoad(kFlows, kFlows), 3.08, 0.005);
  Fabric fabric = LeafSpine(2, kFlows, kFlows);
  Workload workload;
  for (int i = 0; i < kFlows; ++i) workload.Add(Send(i, kFlows + i, 4096));
  double sum = 0;
  constexpr int kSeeds = 300;
  for (int seed = 0; seed < kSeeds; ++seed) {
    PacketOptions options;
    options.seed = static_cast<uint64_t>(seed);
    SimulationResult result = Simulated(fabric, workload, options);
    int64_t most = 0;
    for (int spine = 0; spine < kFlows; ++spine) {
      std::string name = absl::StrCat("spine", spine);
      most = std::max(most, LinkBetween(fabric, result, "leaf0", name.c_str()).packets);
    }
    sum += static_cast<double>(most);
  }
  EXPECT_NEAR(sum / kSeeds / ExpectedMaxLoad(kFlows, kFlows), 1, 0.04);
}

SimulationResult TransferWithLoss(TransportKind transport, double loss, int packets) {
  Fabric fabric = Star({100, 100}, absl::Microseconds(1));
  Workload workload;
  workload.Add(Send(0, 1, int64_t{4096} * packets));
  PacketOptions options;
  options.transport = transport;
  LinkNoise noise;
  noise.link = *fabric.FindLink(NodeId(0), NodeId(2));
  noise.loss = loss;
  options.noise.push_back(noise);
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_EQ(result.unfinished, 0);
  return result;
}

// Each loss costs the slots from the lost packet to its repetition: n = ceil((S + RTT) / S), as the
// next packet's arrival shows it. Goodput 1 / (1 + p n / (1 - p)). Within 5 %.
TEST(GoBackN, HasTheGoodputOfItsFormulaUnderLoss) {
  constexpr int kPackets = 20'000;
  double slot = kFrame * 80;  // ps
  double round_trip = 2 * slot + 2 * 64 * 80 + 4 * 1e6;
  double wasted = std::ceil((slot + round_trip) / slot);
  for (double loss : {0.001, 0.005, 0.01}) {
    SimulationResult result = TransferWithLoss(TransportKind::kGoBackN, loss, kPackets);
    double goodput = kPackets * slot / static_cast<double>(result.operations[0].picoseconds);
    double expected = 1 / (1 + loss * wasted / (1 - loss));
    EXPECT_NEAR(goodput / expected, 1, 0.05) << "loss " << loss;
  }
}

// Only what was lost is sent again: 1 - p. Within 1.5 %.
TEST(SelectiveRepeat, LosesNoMoreGoodputThanPackets) {
  constexpr int kPackets = 20'000;
  for (double loss : {0.001, 0.01, 0.05}) {
    SimulationResult result = TransferWithLoss(TransportKind::kSelective, loss, kPackets);
    double goodput =
        kPackets * kFrame * 80.0 / static_cast<double>(result.operations[0].picoseconds);
    EXPECT_NEAR(goodput / (1 - loss), 1, 0.015) << "loss " << loss;
    EXPECT_NEAR(static_cast<double>(result.retransmissions) / (kPackets * loss / (1 - loss)), 1,
                0.25);
  }
}

// A window of w packets is sent once a round trip, W / RTT; the standard one, 1.5 times what the
// path holds, is never in the way. Within 1 %.
TEST(SelectiveRepeat, SendsAWindowARoundTrip) {
  constexpr int kPackets = 4'000;
  Fabric fabric = Star({100, 100}, absl::Microseconds(1));
  Workload workload;
  workload.Add(Send(0, 1, int64_t{4096} * kPackets));
  PacketOptions options;
  options.transport = TransportKind::kSelective;
  double slot = kFrame * 80;                             // ps
  double round_trip = 2 * slot + 2 * 64 * 80 + 4 * 1e6;  // 14.1 slots
  for (int window : {1, 4, 10}) {
    options.window = Bytes(window * kFrame);
    SimulationResult result = Simulated(fabric, workload, options);
    double expected = round_trip * kPackets / window;
    EXPECT_NEAR(static_cast<double>(result.operations[0].picoseconds) / expected, 1, 0.01)
        << "window " << window;
  }
  options.window = Bytes(0);
  SimulationResult result = Simulated(fabric, workload, options);
  EXPECT_NEAR(static_cast<double>(result.operations[0].picoseconds) / (slot * kPackets), 1, 0.01);
}

TEST(SelectiveRepeat, TakesAWindowOfAnySize) {
  Fabric fabric = Star({100, 100}, absl::Microseconds(50));
  Workload workload;
  workload.Add(Send(0, 1, 4096 * 1000));
  PacketOptions options;
  for (TransportKind transport : {TransportKind::kSelective, TransportKind::kCredit}) {
    options.transport = transport;
    options.window = Bytes(int64_t{kFrame} << 20);
    int64_t large = Simulated(fabric, workload, options).operations[0].picoseconds;
    options.window = Bytes(int64_t{kFrame} << 32);
    EXPECT_EQ(Simulated(fabric, workload, options).operations[0].picoseconds, large);
  }
}

// 2 (n - 1) steps, each a chunk on the wire, one store-and-forward more, and two cables. Within 1
// %.
TEST(RingAllReduce, TakesTheTimeOfItsFormula) {
  constexpr int kRanks = 8;
  constexpr int64_t kChunk = 4096 * 256;
  Fabric fabric = Star(std::vector<double>(kRanks, 400), absl::Microseconds(1));
  Workload workload;
  std::vector<Endpoint> members;
  for (int i = 0; i < kRanks; ++i) members.push_back({NodeId(i), 0});
  Operation ring;
  ring.kind = OperationKind::kRing;
  ring.ring = workload.AddRing(members);
  ring.steps = 2 * (kRanks - 1);
  ring.bytes = Bytes(kChunk);
  workload.Add(ring);
  PacketOptions options;
  options.ack_every = 64;  // acknowledgements share the links with the next rank's data
  SimulationResult result = Simulated(fabric, workload, options);
  double step = (256 + 1) * kFrame * 20e-6 + 2;  // us
  EXPECT_NEAR(absl::ToDoubleMicroseconds(result.end) / (2 * (kRanks - 1) * step), 1, 0.01);
}

}  // namespace
}  // namespace weft::topology
