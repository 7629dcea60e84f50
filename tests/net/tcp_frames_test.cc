// tcp's frames written by hand: honest ones are understood, lies break the link they came on and
// no other. The raw peer is rank 0; rank 2 is a healthy one beside it.
#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/net/raw_peer.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

constexpr TransportKind kTcp = TransportKind::kTcp;

struct Liar {
  Liar() : b(kTcp, 1, 3), healthy(kTcp, 2, 3) {
    to_b = healthy.Connect(b.address(), 1);
    EXPECT_TRUE(DriveUntil({&b, &healthy}, [&] { return b.accepted(2) != nullptr; }));
  }
  // A new link from the liar, and a posted receive of `size` on it.
  RawPeer Open(size_t size, uint64_t tag, Request* request, Buffer& to, bool reduce = false) {
    RawPeer peer = RawPeer::ConnectTo(b.address());
    int before = b.accepted_count;
    EXPECT_TRUE(peer.ShakeHands(b, 0, 3, ++links));
    EXPECT_TRUE(DriveUntil({&b}, [&] { return b.accepted_count > before; }));
    ReceiveTarget target{to.view().Slice(0, size)};
    if (reduce) target.local = to.data(), target.reduce = AddBytes;
    EXPECT_EQ(b.accepted(0)->PostReceive({tag, 0}, target, request), Posted::kAccepted);
    clear = peer.HearHeader(b);
    EXPECT_EQ(clear.type, FrameType::kClearToSend);
    EXPECT_EQ(clear.tag, tag);
    EXPECT_EQ(clear.total, size);
    return peer;
  }
  FrameHeader Data(uint64_t offset, uint64_t length, uint64_t total) const {
    FrameHeader header;
    header.type = FrameType::kData;
    header.receive = clear.receive;
    header.tag = clear.tag;
    header.offset = offset;
    header.length = length;
    header.total = total;
    return header;
  }
  void ExpectHealthyGoesOn() { ExpectMessagePasses(healthy, to_b, b, b.accepted(2)); }
  Node b, healthy;
  SendLink* to_b;
  uint64_t links = 100;
  FrameHeader clear;
};

TEST(TcpFrames, HonestOnesByHandAreUnderstood) {
  Request receive;
  Liar liar;
  Buffer to(liar.b.transport(), 256);
  RawPeer peer = liar.Open(256, 7, &receive, to);
  std::string payload(200, 'p');
  peer.Say(liar.Data(128, 72, 200), payload.substr(128));  // pieces in any order
  peer.Say(liar.Data(0, 128, 200), payload.substr(0, 128));
  ASSERT_TRUE(DriveUntil({&liar.b}, [&] { return receive.done(); }));
  EXPECT_TRUE(receive.status().ok()) << receive.status();
  EXPECT_EQ(receive.bytes(), 200u);
  EXPECT_EQ(std::memcmp(to.data(), payload.data(), 200), 0);
}

TEST(TcpFrames, EachLieBreaksThatLinkAndNoOther) {
  Liar liar;
  using Change = std::function<void(FrameHeader&)>;
  const std::vector<std::pair<const char*, Change>> lies = {
      {"magic", [](FrameHeader& h) { h.magic ^= 1; }},
      {"version", [](FrameHeader& h) { h.version = 77; }},
      {"type", [](FrameHeader& h) { h.type = static_cast<FrameType>(99); }},
      {"direction", [](FrameHeader& h) { h.type = FrameType::kClearToSend, h.length = 0; }},
      {"huge length", [](FrameHeader& h) { h.length = ~0ull; }},
      {"long notice", [](FrameHeader& h) { h.type = FrameType::kNotice, h.length = 513; }},
      {"unknown receive", [](FrameHeader& h) { h.receive ^= 1; }},
      {"stale receive", [](FrameHeader& h) { h.receive ^= 1ull << 40; }},
      {"offset beyond", [](FrameHeader& h) { h.offset = 1 << 20; }},
      {"offset wraps", [](FrameHeader& h) { h.offset = ~0ull - 63; }},
      {"total beyond", [](FrameHeader& h) { h.total = 1 << 20; }},
      {"past the end", [](FrameHeader& h) { h.offset = 192; }},
      {"empty piece", [](FrameHeader& h) { h.length = 0; }},
      {"odd piece", [](FrameHeader& h) { h.length = 63; }},
      {"odd offset", [](FrameHeader& h) { h.offset = 1; }},
  };
  for (const auto& [name, change] : lies) {
    Request receive;
    Buffer to(liar.b.transport(), 256);
    RawPeer peer = liar.Open(256, 7, &receive, to);
    ReceiveLink* link = liar.b.accepted(0);
    FrameHeader header = liar.Data(0, 128, 256);
    change(header);
    peer.Say(header, std::string(128, 'x'));
    ASSERT_TRUE(DriveUntil({&liar.b}, [&] { return receive.done(); })) << name;
    EXPECT_EQ(receive.status().code(), absl::StatusCode::kInvalidArgument) << name;
    EXPECT_THAT(std::string(receive.status().message()), HasSubstr("rank 0")) << name;
    liar.ExpectHealthyGoesOn();
    liar.b.Destroy(link);
  }
}

TEST(TcpFrames, MoreThanTheMessageIsALie) {
  for (int kind = 0; kind < 3; ++kind) {
    Request receive;
    Liar liar;
    Buffer to(liar.b.transport(), 256);
    RawPeer peer = liar.Open(256, 7, &receive, to);
    peer.Say(liar.Data(0, 128, 256), std::string(128, 'x'));
    if (kind == 0) peer.Say(liar.Data(0, 192, 256), std::string(192, 'x'));  // bytes twice
    if (kind == 1) peer.Say(liar.Data(128, 64, 192), std::string(64, 'x'));  // another total
    if (kind == 2) {  // a mismatch after the message has begun
      FrameHeader header = liar.Data(0, 0, 256);
      header.type = FrameType::kMismatch;
      peer.Say(header);
    }
    ASSERT_TRUE(DriveUntil({&liar.b}, [&] { return receive.done(); })) << kind;
    EXPECT_EQ(receive.status().code(), absl::StatusCode::kInvalidArgument) << kind;
  }
}

// Valid streams with some bytes changed, cut anywhere: into a live transport.
TEST(TcpFrames, FuzzedStreamsDoNoHarm) {
  Liar liar;
  for (uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    size_t size = random.Below(3) == 0 ? 300000 : 1 + random.Below(3000);
    Request receive;
    Buffer to(liar.b.transport(), size + 4096);
    to.Clear(0xEE);
    RawPeer peer = liar.Open(size, 7, &receive, to, random.Below(2) == 0);
    ReceiveLink* link = liar.b.accepted(0);
    std::string stream;
    auto append = [&](const FrameHeader& header, const std::string& payload) {
      stream.append(reinterpret_cast<const char*>(&header), sizeof(header));
      stream += payload;
    };
    for (uint64_t offset = 0; offset < size;) {
      uint64_t length = std::min<uint64_t>(size - offset, 64 * (1 + random.Below(2000)));
      if (random.Below(3) == 0) {
        FrameHeader notice;
        notice.type = FrameType::kNotice;
        notice.length = random.Below(kNoticeBytesMax + 1);
        append(notice, std::string(notice.length, 'n'));
      }
      append(liar.Data(offset, length, size), std::string(length, 'd'));
      offset += length;
    }
    for (uint64_t n = random.Below(6); n > 0; --n) {
      // Headers are where it hurts: hit the first one every other time.
      size_t at =
          random.Below(random.Below(2) ? stream.size() : std::min<size_t>(64, stream.size()));
      stream[at] = static_cast<char>(random());
    }
    if (random.Below(3) == 0) stream.resize(random.Below(stream.size() + 1));
    for (size_t at = 0; at < stream.size();) {
      size_t piece =
          std::min<size_t>(stream.size() - at, 1 + random.Below(random.Below(2) ? 80 : 50000));
      ssize_t sent = send(peer.fd(), stream.data() + at, piece, MSG_NOSIGNAL);
      if (sent < 0 && errno != EAGAIN) break;
      if (sent > 0) at += static_cast<size_t>(sent);
      Turn(liar.b, 1);
    }
    peer.Close();
    ASSERT_TRUE(DriveUntil({&liar.b}, [&] { return receive.done() && !link->status().ok(); }));
    for (size_t i = size; i < to.size(); ++i) {
      ASSERT_EQ(to.data()[i], std::byte{0xEE}) << "written past the receive, at " << i;
    }
    if (seed % 20 == 0) liar.ExpectHealthyGoesOn();
    liar.b.Destroy(link);
  }
  liar.ExpectHealthyGoesOn();
}

// The same for the other end: clear-to-sends that lie to a sender.
TEST(TcpFrames, FuzzedClearToSendsDoNoHarm) {
  auto loopback = SocketAddress::Parse("127.0.0.1:1");
  loopback->set_port(0);
  auto listener = Listen(*loopback, {});
  Node a(kTcp, 0, 3, {"tcp.sockets=1"});
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(seed);
    Random random(seed);
    std::deque<Request> sends(8);
    Buffer from(a.transport(), 5000);
    SendLink* link = a.Connect(LocalAddress(listener->get()).ToString(), 1);
    pollfd fd{listener->get(), POLLIN, 0};
    ASSERT_TRUE(DriveUntil({&a}, [&] { return poll(&fd, 1, 0) == 1; }));
    RawPeer peer(FileDescriptor(accept(listener->get(), nullptr, nullptr)));
    ASSERT_TRUE(peer.AcceptHands(a, 1, 3));
    for (uint64_t i = 0; i < sends.size(); ++i) {
      ASSERT_EQ(link->PostSend({i, 0}, from.view().Slice(0, random.Below(5000)), &sends[i]),
                Posted::kAccepted);
    }
    std::string stream;
    for (uint64_t i = 0; i < 12; ++i) {
      FrameHeader header;
      header.type = FrameType::kClearToSend;
      header.receive = i;
      header.tag = random.Below(10);
      header.total = random.Below(2) ? 5000 : random.Below(5000);
      stream.append(reinterpret_cast<const char*>(&header), sizeof(header));
    }
    for (uint64_t n = random.Below(4); n > 0; --n) {
      stream[random.Below(stream.size())] = static_cast<char>(random());
    }
    peer.Say(stream);
    Turn(a, 5);
    peer.Hear();
    peer.Close();
    ASSERT_TRUE(DriveUntil({&a}, [&] { return !link->status().ok(); }));
    for (const Request& send : sends) ASSERT_TRUE(send.done());
    a.Destroy(link);
  }
}

// What a link has sent is told as taken while it is closed: half of the frame comes before.
TEST(TcpFrames, ASenderThatClosesWithinAFrameReadsItToItsEnd) {
  auto loopback = SocketAddress::Parse("127.0.0.1:1");
  loopback->set_port(0);
  auto listener = Listen(*loopback, {});
  Node a(kTcp, 0, 3, {"tcp.sockets=1", "tcp.dead_after=1h"});
  constexpr size_t kBytes = 1000;
  Request send;
  Buffer from(a.transport(), kBytes);
  SendLink* link = a.Connect(LocalAddress(listener->get()).ToString(), 1);
  pollfd fd{listener->get(), POLLIN, 0};
  ASSERT_TRUE(DriveUntil({&a}, [&] { return poll(&fd, 1, 0) == 1; }));
  RawPeer peer(FileDescriptor(accept(listener->get(), nullptr, nullptr)));
  ASSERT_TRUE(peer.AcceptHands(a, 1, 3));
  ASSERT_EQ(link->PostSend({7, 0}, from.view(), &send), Posted::kAccepted);
  FrameHeader clear, taken;
  clear.type = FrameType::kClearToSend;
  clear.tag = 7, clear.total = kBytes;
  peer.Say(clear);
  ASSERT_TRUE(DriveUntil({&a}, [&] { return send.done(); }));
  const uint64_t position = sizeof(FrameHeader) + kBytes;
  const std::string payload(reinterpret_cast<const char*>(&position), sizeof(position));
  taken.type = FrameType::kTaken;
  taken.length = payload.size();
  peer.Say(taken, payload.substr(0, 4));
  Turn(a, 5);
  a.Destroy(link);
  peer.Say(payload.substr(4));
  EXPECT_EQ(peer.HearExactly(a, position).size(), position);
  EXPECT_EQ(peer.HearHeader(a).type, FrameType::kGoodbye);
}

TEST(TcpFrames, AMismatchByHandFailsTheReceiveOnly) {
  Request receive;
  Liar liar;
  Buffer to(liar.b.transport(), 64);
  RawPeer peer = liar.Open(64, 7, &receive, to);
  FrameHeader header = liar.Data(1, 0, 9000);  // offset 1: too long
  header.type = FrameType::kMismatch;
  peer.Say(header);
  ASSERT_TRUE(DriveUntil({&liar.b}, [&] { return receive.done(); }));
  EXPECT_EQ(receive.status().code(), absl::StatusCode::kOutOfRange);
  EXPECT_TRUE(liar.b.accepted(0)->status().ok());
}

}  // namespace
}  // namespace weft::net
