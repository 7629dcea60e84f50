// Requests to a tcp listener to replace a socket of an established link: the link's own sender goes
// on where it was, every other peer is refused, and false requests harm no other link.
#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/net/raw_peer.h"

namespace weft::net {
namespace {

constexpr TransportKind kTcp = TransportKind::kTcp;

// A sender made by hand, so that its link's id and epochs are known.
class ResumeRequest : public testing::Test {
 protected:
  void SetUp() override {
    ASSERT_TRUE(first_.ShakeHands(b_, 0, 3, kLink));
    ASSERT_TRUE(DriveUntil({&b_}, [&] { return b_.accepted(0) != nullptr; }));
    ASSERT_EQ(b_.accepted(0)->PostReceive({7, 7}, {to_.view()}, &receive_), Posted::kAccepted);
    clear_ = first_.HearHeader(b_);
    ASSERT_EQ(clear_.type, FrameType::kClearToSend);
  }
  // True: it was let in.
  bool Come(RawPeer& peer, int rank, LinkParameters parameters) {
    return peer.ShakeHands(b_, rank, 3, parameters);
  }
  FrameHeader Piece(uint64_t offset, uint64_t length, uint64_t total) const {
    FrameHeader header;
    header.type = FrameType::kData;
    header.receive = clear_.receive;
    header.tag = header.check = 7;
    header.offset = offset, header.length = length, header.total = total;
    return header;
  }
  // All of a message comes over this socket.
  void ExpectToServe(RawPeer& peer) {
    peer.Say(Piece(0, 64, 64), std::string(64, 'x'));
    ASSERT_TRUE(DriveUntil({&b_}, [&] { return receive_.done(); }));
    EXPECT_TRUE(receive_.status().ok()) << receive_.status();
  }
  static FrameHeader Resume(uint64_t epoch, uint64_t taken) {
    FrameHeader header;
    header.type = FrameType::kResume;
    header.receive = epoch, header.total = taken;
    return header;
  }
  static constexpr uint64_t kLink = 77;
  static constexpr uint64_t kClearToSendBytes = sizeof(FrameHeader);  // bytes that b has written
  Request receive_;  // the node's end is written to it
  Node b_{kTcp, 1, 3, {"tcp.sockets=1", "tcp.dead_after=1h"}};
  Buffer to_{b_.transport(), 4096};
  RawPeer first_ = RawPeer::ConnectTo(b_.address());
  FrameHeader clear_;
};

TEST_F(ResumeRequest, AFrameThatWasCutGoesOnWhereItWas) {
  first_.Say(Piece(0, 256, 256), std::string(100, 'x'));
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(second, 0, {kLink, 0, 1, 1}));
  const FrameHeader resume = second.HearHeader(b_);
  ASSERT_EQ(resume.type, FrameType::kResume);
  EXPECT_EQ(resume.receive, 1u);
  ASSERT_EQ(resume.total, sizeof(FrameHeader) + 100);
  second.Say(Resume(1, kClearToSendBytes));
  second.Say(std::string(156, 'y'));
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return receive_.done(); }));
  ASSERT_TRUE(receive_.status().ok()) << receive_.status();
  EXPECT_EQ(std::string(reinterpret_cast<char*>(to_.data()), 256),
            std::string(100, 'x') + std::string(156, 'y'));
}

TEST_F(ResumeRequest, WhatWasNotTakenIsSaidAgain) {
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(second, 0, {kLink, 0, 1, 1}));
  EXPECT_EQ(second.HearHeader(b_).total, 0u);
  second.Say(Resume(1, 24));  // of the clear-to-send
  const std::string rest = second.HearExactly(b_, sizeof(FrameHeader) - 24);
  EXPECT_EQ(std::memcmp(rest.data(), reinterpret_cast<char*>(&clear_) + 24, rest.size()), 0);
}

TEST_F(ResumeRequest, SocketsThatAreNotOfTheLinkAreTurnedAway) {
  const std::vector<std::pair<int, LinkParameters>> others = {
      {0, {kLink + 1, 0, 1, 1}},  // no such link
      {2, {kLink, 0, 1, 1}},      // another rank's
      {0, {kLink, 0, 2, 1}},      // of another number of sockets
      {0, {kLink, 1, 2, 1}},
  };
  for (const auto& [rank, parameters] : others) {
    RawPeer peer = RawPeer::ConnectTo(b_.address());
    EXPECT_FALSE(Come(peer, rank, parameters)) << rank;
  }
  // The link does not mind.
  ExpectToServe(first_);
}

// The listener may be in the midst of making a smaller link of the same id.
TEST_F(ResumeRequest, AnIndexOfTheLinkIsNoneOfASmallerOneThatIsBeingMade) {
  constexpr uint64_t kOther = kLink + 1;
  constexpr uint16_t kSockets = 64;
  std::vector<RawPeer> sockets;
  for (uint16_t index = 0; index < kSockets; ++index) {
    sockets.push_back(RawPeer::ConnectTo(b_.address()));
    ASSERT_TRUE(Come(sockets.back(), 2, {kOther, index, kSockets}));
  }
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return b_.accepted(2) != nullptr; }));
  RawPeer first = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(first, 2, {kOther, 0, 2}));
  RawPeer resumes = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(resumes, 2, {kOther, kSockets - 1, kSockets, 1}));
  EXPECT_EQ(resumes.HearHeader(b_).type, FrameType::kResume);
  first.Hear();
  EXPECT_FALSE(first.closed()) << "it waits for its second";
}

TEST_F(ResumeRequest, AnEpochServesOnce) {
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(second, 0, {kLink, 0, 1, 5}));
  for (uint32_t epoch : {5u, 4u, 1u}) {
    RawPeer late = RawPeer::ConnectTo(b_.address());
    EXPECT_FALSE(Come(late, 0, {kLink, 0, 1, epoch})) << epoch;
  }
  EXPECT_EQ(second.HearHeader(b_).receive, 5u);
  second.Say(Resume(5, kClearToSendBytes));
  ExpectToServe(second);
}

TEST_F(ResumeRequest, ARecordedReconnectionIsWorthless) {
  TransportOptions options = OptionsFor(0, 3, {});
  HandshakeIdentity self{options.self, 3, options.secret, HandshakePurpose::kTcpLink};
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ConnectorHandshake handshake(self, Rank(1), LinkParameters{kLink, 0, 1, 1}.Encode(), NewNonce());
  handshake.Feed(second.HearExactly(b_, 44));
  const std::string hello = handshake.TakeOutput();
  RawPeer thief = RawPeer::ConnectTo(b_.address());
  thief.HearExactly(b_, 44);
  thief.Say(hello);
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return thief.Hear(), thief.closed(); }));
  ExpectToServe(first_);
}

TEST_F(ResumeRequest, LiesOfWhatWasTakenBreakTheLink) {
  RawPeer second = RawPeer::ConnectTo(b_.address());
  ASSERT_TRUE(Come(second, 0, {kLink, 0, 1, 1}));
  second.Say(Resume(1, kClearToSendBytes + 1));
  ASSERT_TRUE(DriveUntil({&b_}, [&] { return receive_.done(); }));
  EXPECT_EQ(receive_.status().code(), absl::StatusCode::kInvalidArgument);
}

// All that a reconnection brings, with bytes changed, cut and continued anyhow.
TEST(TcpResumeFuzz, FuzzedReconnectionsDoNoHarm) {
  Node b(kTcp, 1, 3, {"tcp.sockets=1", "tcp.dead_after=1s", "log.level=off"});
  for (uint64_t seed = 0; seed < 100; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    const uint64_t id = 1000 + seed;
    Request receive;
    Buffer to(b.transport(), 512);
    to.Clear(0xEE);
    RawPeer first = RawPeer::ConnectTo(b.address());
    const int before = b.accepted_count;
    ASSERT_TRUE(first.ShakeHands(b, 0, 3, id));
    ASSERT_TRUE(DriveUntil({&b}, [&] { return b.accepted_count > before; }));
    ReceiveLink* link = b.accepted(0);
    ASSERT_EQ(link->PostReceive({7, 7}, {to.view().Slice(0, 256)}, &receive), Posted::kAccepted);
    FrameHeader clear = first.HearHeader(b);
    FrameHeader data;
    data.type = FrameType::kData;
    data.receive = clear.receive, data.tag = data.check = 7;
    data.length = data.total = 256;
    data.flags = static_cast<uint8_t>(random.Below(3));
    first.Say(data, std::string(random.Below(256), 'd'));
    for (int i = 0; i < 3; ++i) b.Progress();
    RawPeer second = RawPeer::ConnectTo(b.address());
    ASSERT_TRUE(second.ShakeHands(b, 0, 3, LinkParameters{id, 0, 1, 1}));
    FrameHeader resume;
    resume.type = FrameType::kResume;
    resume.receive = 1, resume.total = random.Below(65);
    FrameHeader taken;
    taken.type = FrameType::kTaken;
    taken.length = 8;
    std::string stream(reinterpret_cast<char*>(&resume), sizeof(resume));
    stream += std::string(random.Below(300), 'e');
    stream.append(reinterpret_cast<char*>(&taken), sizeof(taken));
    stream += std::string(8, static_cast<char>(random.Below(256)));
    for (uint64_t n = random.Below(5); n > 0; --n) {
      const size_t at = random.Below(random.Below(2) ? stream.size() : 64);
      stream[at] = static_cast<char>(random());
    }
    if (random.Below(3) == 0) stream.resize(random.Below(stream.size() + 1));
    second.Say(stream);
    for (int i = 0; i < 5; ++i) b.Progress();
    second.Close();
    ASSERT_TRUE(DriveUntil({&b}, [&] { return receive.done() && !link->status().ok(); }));
    for (size_t i = 256; i < to.size(); ++i) {
      ASSERT_EQ(to.data()[i], std::byte{0xEE}) << "written past the receive, at " << i;
    }
    b.Destroy(link);
  }
}

}  // namespace
}  // namespace weft::net
