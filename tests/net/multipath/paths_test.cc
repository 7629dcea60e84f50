// What a connection makes of paths that differ: slow ones, dead ones, and ways back.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "net/multipath/flight.h"
#include "net/multipath/receiver.h"
#include "net/multipath/sender.h"

namespace weft::net::multipath {
namespace {

constexpr uint32_t kChunk = 1000, kOverhead = 128;

// A sender whose packets are acknowledged by hand, each after its path's own round trip.
class PathsTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.chunk = kChunk;
    options_.overhead = kOverhead;
    options_.facts = {.base_rtt = absl::Microseconds(10),
                      .bandwidth = Bandwidth::GigabitsPerSecond(1),
                      .packet = Bytes(kChunk + kOverhead)};
    options_.window_max = Bytes(int64_t{kWindow} * (kChunk + kOverhead));
    options_.controller = {.kind = ControllerKind::kFixed, .parameters = {{"window", 1000.0}}};
    options_.paths = {.paths = 2, .slow_factor = 2};
    options_.policy.kind = PolicyKind::kRoundRobin;
    options_.weighs_paths = true;
    options_.timeout_min = absl::Seconds(1);
  }
  void Start() {
    sender_ = std::make_unique<Sender>(options_, now_);
    receiver_ = std::make_unique<Receiver>(receiver_options_, now_);
    ASSERT_TRUE(receiver_->Post(1, nullptr, 1 << 20));
    ASSERT_TRUE(sender_->Send(1, nullptr, 1 << 20));
    Run(now_);  // the handshake
  }
  // Sends what may be sent, and delivers and acknowledges what is due by `end`.
  void Run(absl::Time end) {
    while (true) {
      Outgoing out;
      while (sender_->Next(now_, out)) {
        absl::Duration rtt = rtt_[out.packet.path];
        on_its_way_.emplace(now_ + (out.packet.number == 0 ? absl::ZeroDuration() : rtt),
                            out.packet);
        if (out.packet.number > 0) ++sent_[out.packet.path];
      }
      if (on_its_way_.empty() || on_its_way_.begin()->first > end) break;
      now_ = on_its_way_.begin()->first;
      Packet packet = on_its_way_.begin()->second;
      on_its_way_.erase(on_its_way_.begin());
      receiver_->Receive({.packet = packet, .chunk_bytes = kChunk}, now_);
      Packet answer;
      while (receiver_->Next(now_, answer)) {
        ways_.push_back(answer.path);
        sender_->Receive(answer, now_);
      }
    }
    now_ = end;
  }
  int InFlight(PathId path) const {
    return static_cast<int>(
        std::count_if(on_its_way_.begin(), on_its_way_.end(),
                      [&](const auto& one) { return one.second.path == path; }));
  }

  static constexpr int kWindow = 8;  // packets
  SenderOptions options_;
  ReceiverOptions receiver_options_{.ack_every = 1};
  absl::Time now_ = absl::UnixEpoch();
  std::map<PathId, absl::Duration> rtt_ = {{0, absl::Microseconds(10)},
                                           {1, absl::Microseconds(10)}};
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Receiver> receiver_;
  std::multimap<absl::Time, Packet> on_its_way_;
  std::map<PathId, int> sent_;
  std::vector<PathId> ways_;
};

TEST_F(PathsTest, ASlowPathGetsOnePacketAtATimeAndHoldsNoWindow) {
  rtt_[1] = absl::Microseconds(200);
  Start();
  Run(now_ + absl::Milliseconds(1));
  EXPECT_TRUE(sender_->paths().IsSlow(1));
  EXPECT_LE(InFlight(1), 1);
  EXPECT_EQ(InFlight(0), kWindow) << "as if nothing were on the slow path";
  sent_.clear();
  Run(now_ + absl::Milliseconds(1));
  EXPECT_GE(sent_[1], 3) << "it still carries what it can";
  EXPECT_LE(sent_[1], 6);
  EXPECT_EQ(sender_->statistics().retransmissions, 0);
}

TEST_F(PathsTest, APathThatIsSlowNoLongerIsUsedAsBefore) {
  rtt_[1] = absl::Microseconds(200);
  Start();
  Run(now_ + absl::Milliseconds(1));
  ASSERT_TRUE(sender_->paths().IsSlow(1));
  rtt_[1] = absl::Microseconds(10);
  Run(now_ + absl::Milliseconds(5));
  EXPECT_FALSE(sender_->paths().IsSlow(1));
  sent_.clear();
  Run(now_ + absl::Milliseconds(1));
  EXPECT_NEAR(sent_[1], sent_[0], 0.2 * sent_[0]);
}

TEST_F(PathsTest, PathsThatAreSlowAlikeAreNotSpared) {
  rtt_[0] = rtt_[1] = absl::Microseconds(500);
  Start();
  Run(now_ + absl::Milliseconds(10));
  EXPECT_EQ(InFlight(0) + InFlight(1), kWindow);
  EXPECT_GT(InFlight(1), 1);
}

TEST_F(PathsTest, TheControllerReckonsWithTheRoundTripThatShows) {
  rtt_[0] = rtt_[1] = absl::Microseconds(500);
  options_.controller = {.kind = ControllerKind::kSwift};
  options_.measures_base_rtt = true;
  Start();
  Run(now_ + absl::Milliseconds(50));
  EXPECT_EQ(sender_->base_rtt(), absl::Microseconds(500));
  double target_us = 0;
  sender_->controller().Visit([&](absl::string_view name, double value) {
    if (name == "target_us") target_us = value;
  });
  EXPECT_GT(target_us, 500);
  EXPECT_EQ(InFlight(0) + InFlight(1), kWindow);
}

TEST_F(PathsTest, SilenceIsAskedAboutOnEveryPath) {
  options_.paths.paths = 8;
  options_.probes_all = true;
  for (PathId path = 2; path < 8; ++path) rtt_[path] = rtt_[0];
  Start();
  std::set<PathId> asked;
  Outgoing out;
  for (int turn = 0; turn < 1000 && asked.empty(); ++turn) {
    now_ = std::max(sender_->deadline(), now_ + absl::Milliseconds(5));
    while (sender_->Next(now_, out)) {
      if (out.packet.type == PacketType::kProbe) asked.insert(out.packet.path);
    }
  }
  EXPECT_EQ(asked.size(), 8U);
}

TEST_F(PathsTest, SendersSayWhichWayAnAcknowledgementCame) {
  Start();
  Packet ack;
  ack.type = PacketType::kAck;
  ack.path = 1;
  ack.source = receiver_options_.incarnation;
  ack.target = options_.incarnation;
  ack.base = 2;
  ack.messages = 1;
  ack.credit = kUnlimited;
  sender_->Receive(ack, now_);
  Outgoing out;
  ASSERT_TRUE(sender_->Next(now_, out));
  EXPECT_EQ(out.packet.heard, 2);
}

TEST_F(PathsTest, AcknowledgementsTakeWaysThatWereHeardAndExploreOthers) {
  receiver_options_.recycles_ways = true;
  Start();
  on_its_way_.clear();
  ways_.clear();
  Packet data;
  data.type = PacketType::kProbe;
  data.source = options_.incarnation;
  data.target = receiver_options_.incarnation;
  auto arrives = [&](PathId path, PathId heard) {
    data.number += 1000;
    data.floor = data.number;
    data.path = path;
    data.heard = static_cast<uint16_t>(heard + 1);
    receiver_->Receive({.packet = data}, now_);
    Packet answer;
    ASSERT_TRUE(receiver_->Next(now_, answer));
    ways_.push_back(answer.path);
    // A probe is answered by its own way besides.
    EXPECT_EQ(receiver_->Next(now_, answer), ways_.back() != path);
    EXPECT_EQ(answer.path, path);
    EXPECT_FALSE(receiver_->Next(now_, answer));
  };
  for (int i = 0; i < 40; ++i) arrives(/*path=*/0, /*heard=*/static_cast<PathId>(5 + i % 2));
  ASSERT_EQ(ways_.size(), 40U);
  EXPECT_EQ(std::count(ways_.begin(), ways_.end(), 0), 10);
  EXPECT_EQ(std::count(ways_.begin(), ways_.end(), 5) + std::count(ways_.begin(), ways_.end(), 6),
            30);
  // Both die: what is heard from now on replaces them.
  for (int i = 0; i < 8; ++i) arrives(0, static_cast<PathId>(7 + i % 2));
  ways_.clear();
  for (int i = 0; i < 8; ++i) arrives(0, static_cast<PathId>(7 + i % 2));
  EXPECT_EQ(std::count(ways_.begin(), ways_.end(), 5) + std::count(ways_.begin(), ways_.end(), 6),
            0);
}

// The oldest of all is on a slow path, for which there is more patience; that of a dead path behind
// it does not wait for it.
TEST(FlightTest, TheOldestOfEachPathIsJudgedByItself) {
  Flight flight(3, 64, absl::Microseconds(10), absl::ZeroDuration(), /*weighs_paths=*/true);
  absl::Time now = absl::UnixEpoch();
  auto send = [&](PathId path) { return flight.Add({.at = now, .bytes = 1000, .path = path}); };
  flight.Arrived(*flight.Find(send(2)), absl::Milliseconds(1), /*is_usual=*/false);
  flight.Arrived(*flight.Find(send(0)), absl::Microseconds(10));
  uint64_t slow = send(2), dead = send(1), behind = send(1), heard = send(0);
  std::set<uint64_t> lost;
  auto on_lost = [&](const Sent& sent, PathLoss loss) {
    EXPECT_EQ(loss, PathLoss::kTimeout);
    lost.insert(sent.number);
  };
  now += absl::Microseconds(10);
  flight.Arrived(*flight.Find(heard), absl::Microseconds(10));
  flight.DetectLosses(now, on_lost);
  EXPECT_TRUE(lost.empty());
  while (lost.empty() && now < absl::UnixEpoch() + absl::Milliseconds(1)) {
    now = flight.deadline();
    flight.DetectLosses(now, on_lost);
  }
  EXPECT_EQ(lost, (std::set<uint64_t>{dead, behind}));
  EXPECT_LT(now, absl::UnixEpoch() + absl::Microseconds(100));
  EXPECT_NE(flight.Find(slow), nullptr);
}

}  // namespace
}  // namespace weft::net::multipath
