// Sender and receiver by hand: each packet delivered, held or dropped on purpose.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "net/multipath/receiver.h"
#include "net/multipath/sender.h"

namespace weft::net::multipath {
namespace {

using testing::HasSubstr;

class ConnectionTest : public testing::Test {
 protected:
  void SetUp() override {
    options_.chunk = 1000;
    options_.numbers = 64;
    options_.messages = 8;
    options_.facts = {.base_rtt = absl::Microseconds(10),
                      .bandwidth = Bandwidth::GigabitsPerSecond(100),
                      .packet = Bytes(1128)};
    options_.controller.kind = ControllerKind::kFixed;
    options_.controller.parameters = {{"window", 100.0}};
    options_.paths.paths = 4;
    options_.policy.kind = PolicyKind::kRoundRobin;
    options_.timeout_min = absl::Microseconds(50);
    receiver_options_.ack_every = 1;
    receiver_options_.messages = 8;
  }

  void Start() {
    sender_ = std::make_unique<Sender>(options_, now_);
    receiver_ = std::make_unique<Receiver>(receiver_options_, now_);
  }
  // Everything that the sender has to send now.
  std::vector<Outgoing> Sent() {
    std::vector<Outgoing> all;
    Outgoing out;
    while (sender_->Next(now_, out)) all.push_back(out);
    return all;
  }
  void Deliver(const Outgoing& out, bool marked = false, bool trimmed = false) {
    receiver_->Receive({.packet = out.packet,
                        .chunk = out.chunk,
                        .chunk_bytes = out.chunk_bytes,
                        .marked = marked,
                        .trimmed = trimmed},
                       now_);
  }
  std::vector<Packet> Answers() {
    std::vector<Packet> all;
    Packet packet;
    while (receiver_->Next(now_, packet)) all.push_back(packet);
    return all;
  }
  void Answer() {
    for (const Packet& packet : Answers()) sender_->Receive(packet, now_);
  }
  void Handshake() {
    for (const Outgoing& out : Sent()) Deliver(out);
    Answer();
    ASSERT_EQ(sender_->state(), ConnectionState::kOpen);
  }
  std::vector<Completion> Done(auto& side) {
    std::vector<Completion> all;
    Completion one;
    while (side.TakeCompletion(one)) all.push_back(one);
    return all;
  }
  void Post(uint64_t cookie, size_t capacity) {
    buffers_.push_back(std::make_unique<std::string>(capacity, '.'));
    ASSERT_TRUE(
        receiver_->Post(cookie, reinterpret_cast<std::byte*>(buffers_.back()->data()), capacity));
  }
  void Send(uint64_t cookie, const std::string& text) {
    ASSERT_TRUE(
        sender_->Send(cookie, reinterpret_cast<const std::byte*>(text.data()), text.size()));
  }

  SenderOptions options_;
  ReceiverOptions receiver_options_;
  absl::Time now_ = absl::UnixEpoch();
  std::unique_ptr<Sender> sender_;
  std::unique_ptr<Receiver> receiver_;
  std::vector<std::unique_ptr<std::string>> buffers_;
  const std::string text_ = std::string(2500, 'a') + std::string(1700, 'b');
};

TEST_F(ConnectionTest, AMessageInReverseOrderArrivesWhole) {
  Start();
  Post(1, 5000);
  Send(7, text_);
  Handshake();
  std::vector<Outgoing> sent = Sent();
  ASSERT_EQ(sent.size(), 5U);
  now_ += absl::Microseconds(5);
  for (auto out = sent.rbegin(); out != sent.rend(); ++out) {
    Deliver(*out);
    Deliver(*out);  // twice
  }
  std::vector<Completion> done = Done(*receiver_);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].cookie, 1U);
  EXPECT_EQ(done[0].bytes, 4200U);
  EXPECT_EQ(buffers_[0]->substr(0, 4200), text_);
  Answer();
  done = Done(*sender_);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].cookie, 7U);
  EXPECT_TRUE(done[0].status.ok());
  EXPECT_TRUE(sender_->flight().empty());
}

TEST_F(ConnectionTest, NothingLeavesBeforeItsReceiveIsPosted) {
  Start();
  Send(1, text_);
  Handshake();
  EXPECT_TRUE(Sent().empty());
  Post(1, 5000);
  Answer();
  EXPECT_EQ(Sent().size(), 5U);
}

TEST_F(ConnectionTest, MessagesCompleteInAnyOrderButTakeReceivesInOrder) {
  Start();
  Post(10, 5000);
  Post(11, 5000);
  std::string first(900, '1'), second(900, '2');
  Send(1, first);
  Send(2, second);
  Handshake();
  std::vector<Outgoing> sent = Sent();
  ASSERT_EQ(sent.size(), 2U);
  Deliver(sent[1]);
  std::vector<Completion> done = Done(*receiver_);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].cookie, 11U);
  EXPECT_EQ((*buffers_[1])[0], '2');
  Deliver(sent[0]);
  EXPECT_EQ(Done(*receiver_)[0].cookie, 10U);
}

// Four packets on one path, the first lost: the third after it tells.
TEST_F(ConnectionTest, ThreeLaterOnTheSamePathMeanDropped) {
  options_.paths.paths = 1;
  Start();
  Post(1, 5000);
  Send(1, text_);
  Handshake();
  std::vector<Outgoing> sent = Sent();
  now_ += absl::Microseconds(10);
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_TRUE(Sent().empty()) << i;
    Deliver(sent[i]);
    Answer();
  }
  std::vector<Outgoing> again = Sent();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_TRUE(again[0].is_retransmission);
  EXPECT_EQ(again[0].packet.offset, 0U);
  EXPECT_EQ(sender_->paths().live(), 1) << "a dropped packet is no dead path";
  EXPECT_EQ(sender_->tally(0).lost, 1U) << "those that arrived are none";
  EXPECT_EQ(sender_->tally(0).bytes, 3 * (options_.chunk + options_.overhead));
}

// The packets of other paths say nothing at once, however many they are; after a round trip and its
// spread they say that the path may be dead.
TEST_F(ConnectionTest, ASilentPathIsLeftAndProbed) {
  options_.paths.paths = 2;
  Start();
  Post(1, 20'000);
  std::string text(20'000, 'x');
  Send(1, text);
  Handshake();
  std::vector<Outgoing> sent = Sent();
  ASSERT_EQ(sent.size(), 20U);
  PathId dead = sent[0].packet.path;
  now_ += absl::Microseconds(10);
  for (const Outgoing& out : sent) {
    if (out.packet.path != dead) Deliver(out);
  }
  Answer();
  EXPECT_TRUE(Sent().empty());
  now_ = sender_->deadline();
  std::vector<Outgoing> again = Sent();
  ASSERT_EQ(again.size(), 10U);
  for (const Outgoing& out : again) EXPECT_NE(out.packet.path, dead);
  EXPECT_FALSE(sender_->paths().IsLive(dead));
  for (const Outgoing& out : again) Deliver(out);
  Answer();
  EXPECT_EQ(Done(*sender_).size(), 1U);
  // Its probe is answered, and it is back.
  std::vector<Outgoing> probes;
  while (probes.empty()) {
    now_ = sender_->deadline();
    probes = Sent();
  }
  EXPECT_EQ(probes[0].packet.type, PacketType::kProbe);
  EXPECT_EQ(probes[0].packet.path, dead);
  Deliver(probes[0]);
  Answer();
  EXPECT_TRUE(sender_->paths().IsLive(dead));
}

TEST_F(ConnectionTest, ALostTailIsProbedBeforeEverythingIsGivenUp) {
  Start();
  Post(1, 5000);
  Send(1, text_);
  Handshake();
  EXPECT_EQ(Sent().size(), 5U);  // all lost
  now_ = sender_->deadline();
  std::vector<Outgoing> probe = Sent();
  ASSERT_EQ(probe.size(), 1U);
  EXPECT_EQ(probe[0].packet.offset, 4000U);
  EXPECT_EQ(sender_->statistics().tail_probes, 1);
  EXPECT_EQ(sender_->statistics().timeouts, 0);
  absl::Duration first = sender_->deadline() - now_;
  now_ = sender_->deadline();
  EXPECT_EQ(Sent().size(), 5U);
  EXPECT_EQ(sender_->statistics().timeouts, 1);
  EXPECT_GT(sender_->deadline() - now_, first) << "the timeout backs off";
}

TEST_F(ConnectionTest, NoPaceKeepsAPacketBackBeyondTheLongestTimeout) {
  options_.facts.base_rtt = absl::Milliseconds(10);
  options_.facts.bandwidth = Bandwidth::GigabitsPerSecond(0.01);
  options_.timeout_max = absl::Milliseconds(100);
  // A thousandth of a packet each round trip: a packet each 10 s.
  options_.controller = {.kind = ControllerKind::kSwift, .parameters = {{"window_start", 1e-4}}};
  Start();
  Post(1, 5000);
  Send(7, text_);
  Handshake();
  const absl::Time begin = now_;
  Outgoing out;
  for (int sent = 0; sent < 4; now_ = sender_->deadline()) {
    while (sender_->Next(now_, out)) sent += out.packet.type == PacketType::kData;
    ASSERT_LT(now_ - begin, 4 * options_.timeout_max) << sent;
  }
}

TEST_F(ConnectionTest, ATrimmedPacketIsSentAgainAtOnce) {
  Start();
  Post(1, 5000);
  Send(1, text_);
  Handshake();
  std::vector<Outgoing> sent = Sent();
  Deliver(sent[2], false, true);
  Answer();
  std::vector<Outgoing> again = Sent();
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].packet.offset, 2000U);
}

TEST_F(ConnectionTest, AMessageTooLongFailsOnBothSidesAndHurtsNoOther) {
  Start();
  Post(1, 4199);
  Post(2, 100);
  Send(1, text_);
  std::string next(100, 'n');
  Send(2, next);
  Handshake();
  for (const Outgoing& out : Sent()) Deliver(out);
  std::vector<Completion> done = Done(*receiver_);
  ASSERT_EQ(done.size(), 2U);
  EXPECT_THAT(done[0].status.message(),
              HasSubstr("4200 bytes from the peer is longer than the 4199"));
  EXPECT_TRUE(done[1].status.ok());
  Answer();
  done = Done(*sender_);
  ASSERT_EQ(done.size(), 2U);
  EXPECT_TRUE(absl::IsOutOfRange(done[0].status));
  EXPECT_TRUE(done[1].status.ok());
}

TEST_F(ConnectionTest, ARestartedReceiverFailsWhatWasOutstandingAndIsMetAnew) {
  Start();
  Post(1, 5000);
  Send(1, text_);
  Handshake();
  std::vector<Outgoing> sent = Sent();
  receiver_options_.incarnation = 2;
  receiver_ = std::make_unique<Receiver>(receiver_options_, now_);
  Deliver(sent[0]);
  Answer();
  std::vector<Completion> done = Done(*sender_);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_THAT(done[0].status.message(), HasSubstr("has restarted"));
  Post(2, 5000);
  Send(2, text_);
  Handshake();
  for (const Outgoing& out : sent) Deliver(out);  // of the life before: nothing
  EXPECT_TRUE(Done(*receiver_).empty());
  for (const Outgoing& out : Sent()) Deliver(out);
  EXPECT_EQ(Done(*receiver_).size(), 1U);
}

TEST_F(ConnectionTest, ARestartedSenderFailsWhatWasPostedForItAndLateHellosAreIgnored) {
  Start();
  Post(1, 5000);
  Send(1, text_);
  std::vector<Outgoing> hello = Sent();
  Deliver(hello[0]);
  Answer();
  options_.incarnation = 100;
  sender_ = std::make_unique<Sender>(options_, now_);
  Handshake();
  std::vector<Completion> done = Done(*receiver_);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_THAT(done[0].status.message(), HasSubstr("has restarted"));
  Post(2, 5000);
  Deliver(hello[0]);
  EXPECT_EQ(receiver_->peer_incarnation(), 100U);
  EXPECT_TRUE(Done(*receiver_).empty());
}

TEST_F(ConnectionTest, CreditsBoundWhatIsSentAndALostGrantIsMadeGood) {
  receiver_options_.grants_credit = true;
  receiver_options_.credit = 2000;
  Start();
  Post(1, 5000);
  Send(1, text_);
  Handshake();
  std::vector<Outgoing> sent = Sent();
  ASSERT_EQ(sent.size(), 2U);
  EXPECT_EQ(sent[1].packet.demand, 4200U);
  for (const Outgoing& out : sent) Deliver(out);
  Answer();
  EXPECT_TRUE(Sent().empty());
  receiver_->Grant(4000);
  EXPECT_EQ(Answers().size(), 1U);  // lost
  now_ = sender_->deadline();
  std::vector<Outgoing> probe = Sent();
  ASSERT_EQ(probe.size(), 1U);
  EXPECT_EQ(probe[0].packet.type, PacketType::kProbe);
  Deliver(probe[0]);
  Answer();
  EXPECT_EQ(Sent().size(), 2U);
}

TEST_F(ConnectionTest, ClosesOnceEverythingIsAcknowledged) {
  Start();
  Post(1, 5000);
  Post(2, 5000);
  Send(1, text_);
  sender_->Close();
  Handshake();
  for (const Outgoing& out : Sent()) Deliver(out);
  Answer();
  std::vector<Outgoing> finish = Sent();
  ASSERT_EQ(finish.size(), 1U);
  EXPECT_EQ(finish[0].packet.type, PacketType::kFinish);
  now_ = sender_->deadline();
  finish = Sent();  // the first was lost
  ASSERT_EQ(finish.size(), 1U);
  Deliver(finish[0]);
  EXPECT_EQ(receiver_->state(), ConnectionState::kClosed);
  std::vector<Completion> done = Done(*receiver_);
  ASSERT_EQ(done.size(), 2U);
  EXPECT_TRUE(absl::IsCancelled(done[1].status));
  Answer();
  EXPECT_EQ(sender_->state(), ConnectionState::kClosed);
}

TEST_F(ConnectionTest, ASilentPeerBreaksTheConnectionWithAName) {
  options_.peer = "rank 3";
  options_.give_up = absl::Milliseconds(10);
  Start();
  Send(1, text_);
  for (int i = 0; i < 100 && sender_->state() == ConnectionState::kConnecting; ++i) {
    now_ = std::max(now_, sender_->deadline());
    Sent();
  }
  EXPECT_EQ(sender_->state(), ConnectionState::kBroken);
  std::vector<Completion> done = Done(*sender_);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_THAT(done[0].status.message(), HasSubstr("nothing was heard of rank 3 for 10ms"));
  Send(2, text_);
  EXPECT_FALSE(Done(*sender_)[0].status.ok());
}

TEST_F(ConnectionTest, OutstandingMessagesAndReceivesAreBounded) {
  Start();
  for (uint64_t i = 0; i < 8; ++i) {
    Send(i, text_);
    Post(i, 5000);
  }
  std::byte byte{};
  EXPECT_FALSE(sender_->Send(8, &byte, 1));
  EXPECT_FALSE(receiver_->Post(8, &byte, 1));
  Handshake();
  EXPECT_EQ(Sent().size(), 40U);
}

// The incarnation that a reset echoes is that of whom the unknown packet was meant for.
TEST_F(ConnectionTest, AResetForAnotherLifeOfThePeerIsNotBelieved) {
  receiver_options_.incarnation = 2;
  Start();
  Post(1, 5000);
  Send(1, text_);
  Handshake();
  Packet stale;
  stale.type = PacketType::kReset;
  stale.source = 2;
  stale.target = options_.incarnation;
  stale.echo = 1;  // it answers what was meant for the life before
  for (ResetReason reason : {ResetReason::kUnknown, ResetReason::kClosed}) {
    stale.reason = reason;
    sender_->Receive(stale, now_);
    EXPECT_EQ(sender_->state(), ConnectionState::kOpen);
    EXPECT_TRUE(Done(*sender_).empty());
  }
  for (const Outgoing& out : Sent()) Deliver(out);
  Answer();
  EXPECT_TRUE(Done(*sender_).at(0).status.ok());
}

}  // namespace
}  // namespace weft::net::multipath
