// What only tcp has: raw sockets at its door, frames that lie, descriptors that run out.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "net/tcp/interface.h"
#include "net/tcp/tcp_transport.h"
#include "tests/net/raw_peer.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

constexpr TransportKind kTcp = TransportKind::kTcp;
const std::vector<std::string> kOneSocket = {"tcp.sockets=1", "transport.connect_timeout=2s"};

void Turn(Node& node, int turns) {
  for (int i = 0; i < turns; ++i) node.Progress();
}

// The transport under test still takes a friend and a message from it.
void ExpectHealthy(Node& b, int friend_rank, int world_size) {
  Node a(kTcp, friend_rank, world_size);
  Request send, receive;
  SendLink* link = a.Connect(b.address(), b.rank());
  int before = b.accepted_count;
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return b.accepted_count > before; }));
  Buffer from(a.transport(), 5000), to(b.transport(), 5000);
  from.FillPattern(8);
  ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(b.accepted(friend_rank)->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return send.done() && receive.done(); }));
  EXPECT_EQ(to.CheckPattern(8, 5000), "");
  b.Destroy(b.accepted(friend_rank));
}

TEST(TcpDoor, GarbageClosesThatSocketOnly) {
  Node b(kTcp, 1, 3);
  for (const std::string& garbage : {std::string("GET / HTTP/1.0\r\n\r\n"), std::string(5000, '\0'),
                                     std::string("WEFT\x07\x00\x02\x00garbage", 15)}) {
    RawPeer peer = RawPeer::ConnectTo(b.address());
    peer.Say(garbage);
    ASSERT_TRUE(DriveUntil({&b}, [&] { return peer.Hear(), peer.closed(); }));
  }
  EXPECT_EQ(b.accepted_count, 0);
  ExpectHealthy(b, 0, 3);
}

TEST(TcpDoor, AHandshakeCutAtEveryByteLeavesNothingBehind) {
  Node b(kTcp, 1, 3);
  TransportOptions options = OptionsFor(0, 3, {});
  HandshakeIdentity self{options.self, 3, options.secret, HandshakePurpose::kTcpLink};
  for (size_t cut = 0;; cut += 3) {
    RawPeer peer = RawPeer::ConnectTo(b.address());
    ConnectorHandshake handshake(self, Rank(1), LinkParameters{cut, 0, 2}.Encode(), NewNonce());
    handshake.Feed(peer.HearExactly(b, 44));
    std::string hello = handshake.TakeOutput();
    ASSERT_FALSE(hello.empty());
    peer.Say(hello.substr(0, cut));
    Turn(b, 3);
    peer.Close();
    Turn(b, 3);
    if (cut >= hello.size()) break;
  }
  EXPECT_EQ(b.accepted_count, 0);
  ExpectHealthy(b, 0, 3);
}

TEST(TcpDoor, HalfOpenConnectionsAreClosedAtTheirDeadline) {
  Node b(kTcp, 1, 3);
  RawPeer silent = RawPeer::ConnectTo(b.address());
  RawPeer half = RawPeer::ConnectTo(b.address());  // one socket of a link of two
  ASSERT_TRUE(half.ShakeHands(b, 0, 3, 5, 0, 2));
  ASSERT_TRUE(DriveUntil({&b}, [&] { return !silent.Hear().empty(); }));
  absl::Time deadline = b.transport().NextDeadline();
  EXPECT_LE(deadline, Now() + kHandshakeTimeout);
  b.transport().Progress(Now() + kHandshakeTimeout + absl::Seconds(1));  // time is an argument
  EXPECT_TRUE(DriveUntil({&b}, [&] { return silent.Hear(), silent.closed(); }));
  EXPECT_TRUE(DriveUntil({&b}, [&] { return half.Hear(), half.closed(); }));
  EXPECT_EQ(b.accepted_count, 0);
  EXPECT_EQ(b.transport().NextDeadline(), absl::InfiniteFuture());
}

TEST(TcpDoor, SocketsOfOneLinkAreGroupedWhateverTheirOrder) {
  Node b(kTcp, 1, 3);
  std::deque<RawPeer> peers;
  for (uint16_t index : {2, 0, 1}) {
    EXPECT_EQ(b.accepted_count, 0);
    peers.push_back(RawPeer::ConnectTo(b.address()));
    ASSERT_TRUE(peers.back().ShakeHands(b, 0, 3, 77, index, 3));
  }
  ASSERT_TRUE(DriveUntil({&b}, [&] { return b.accepted_count == 1; }));
  EXPECT_THAT(b.accepted(0)->Describe(), HasSubstr("3 sockets"));
}

TEST(TcpDoor, AnAttemptThatWasGivenUpDoesNotMixWithTheNext) {
  Node b(kTcp, 1, 3);
  RawPeer old_socket = RawPeer::ConnectTo(b.address());
  ASSERT_TRUE(old_socket.ShakeHands(b, 0, 3, 1, 0, 2));
  RawPeer one = RawPeer::ConnectTo(b.address()), two = RawPeer::ConnectTo(b.address());
  ASSERT_TRUE(one.ShakeHands(b, 0, 3, 2, 1, 2));
  EXPECT_EQ(b.accepted_count, 0);
  ASSERT_TRUE(two.ShakeHands(b, 0, 3, 2, 0, 2));
  ASSERT_TRUE(DriveUntil({&b}, [&] { return b.accepted_count == 1; }));
  EXPECT_TRUE(DriveUntil({&b}, [&] { return old_socket.Hear(), old_socket.closed(); }));
  EXPECT_TRUE(b.accepted(0)->status().ok());
}

TEST(TcpDoor, APeerThatListensLaterIsReached) {
  Node a(kTcp, 0, 2, {"tcp.sockets=1"});
  auto loopback = SocketAddress::Parse("127.0.0.1:1");
  loopback->set_port(0);
  FileDescriptor late(
      socket(AF_INET, SOCK_STREAM, 0));  // bound, so the port is ours; not listening
  ASSERT_EQ(bind(late.get(), loopback->get(), loopback->size()), 0);
  SendLink* link = a.Connect(LocalAddress(late.get()).ToString(), 1);
  Turn(a, 20);
  EXPECT_TRUE(link->status().ok());
  ASSERT_EQ(listen(late.get(), 8), 0);
  pollfd fd{late.get(), POLLIN, 0};
  ASSERT_TRUE(DriveUntil({&a}, [&] { return poll(&fd, 1, 0) == 1; }));
  RawPeer peer(FileDescriptor(accept(late.get(), nullptr, nullptr)));
  ASSERT_TRUE(peer.AcceptHands(a, 1, 2));
  ASSERT_TRUE(DriveUntil({&a}, [&] { return link->Describe().find("->") != std::string::npos; }));
  EXPECT_TRUE(link->status().ok()) << link->status();
}

TEST(TcpDoor, SomethingElseAtTheAddressIsRecognised) {
  Node a(kTcp, 0, 2, kOneSocket);
  auto loopback = SocketAddress::Parse("127.0.0.1:1");
  loopback->set_port(0);
  auto other = Listen(*loopback, {});
  SendLink* link = a.Connect(LocalAddress(other->get()).ToString(), 1);
  pollfd fd{other->get(), POLLIN, 0};
  ASSERT_TRUE(DriveUntil({&a}, [&] { return poll(&fd, 1, 0) == 1; }));
  RawPeer peer(FileDescriptor(accept(other->get(), nullptr, nullptr)));
  peer.Say("SSH-2.0-OpenSSH_9.2\r\n");
  ASSERT_TRUE(DriveUntil({&a}, [&] { return !link->status().ok(); }));
  EXPECT_EQ(link->status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(link->status().message()), HasSubstr("SSH-2.0"));
  EXPECT_THAT(std::string(link->status().message()), HasSubstr("rank 1"));
}

// Runs in a child, whose limit may be lowered. 0, or the line that failed.
#define REQUIRE_IN_CHILD(condition) \
  if (!(condition)) return __LINE__ % 250 + 1

TEST(TcpDescriptors, ExhaustionTurnsAwayAndRecovers) {
  Child child([](Child::Channel&) {
    Node b(kTcp, 1, 3, kOneSocket);
    Node a(kTcp, 0, 3, {"tcp.sockets=1", "transport.connect_timeout=30s"});
    RawPeer first = RawPeer::ConnectTo(b.address());
    std::vector<FileDescriptor> hoard;
    rlimit limit{64, 64};
    REQUIRE_IN_CHILD(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    SendLink* link = a.Connect(b.address(), 1);
    a.Progress();  // its socket exists
    while (true) {
      FileDescriptor one(open("/dev/null", O_RDONLY));
      if (!one) break;
      hoard.push_back(std::move(one));
    }
    // No descriptor is left for accept(). It must not spin: a turn without news reports none.
    int idle = 0;
    for (int i = 0; i < 200; ++i) idle += !b.Progress();
    REQUIRE_IN_CHILD(idle > 150);
    REQUIRE_IN_CHILD(b.transport().NextDeadline() < Now() + absl::Seconds(1));
    // A new connection from here fails with a clear error.
    SendLink* refused = a.Connect(b.address(), 1);
    REQUIRE_IN_CHILD(DriveUntil({&a}, [&] { return !refused->status().ok(); }));
    std::string text(refused->status().message());
    REQUIRE_IN_CHILD(refused->status().code() == absl::StatusCode::kResourceExhausted);
    REQUIRE_IN_CHILD(text.find("ulimit") != std::string::npos);
    REQUIRE_IN_CHILD(text.find("rank 1") != std::string::npos);
    hoard.clear();
    REQUIRE_IN_CHILD(DriveUntil({&a, &b}, [&] { return b.accepted(0) != nullptr; }));
    REQUIRE_IN_CHILD(link->status().ok());
    return 0;
  });
  EXPECT_EQ(child.Wait(), 0);
}

// ---- Frames that lie. The raw peer is rank 0; rank 2 is a healthy one beside it.

struct Liar {
  Liar() : b(kTcp, 1, 3), healthy(kTcp, 2, 3) {
    to_b = healthy.Connect(b.address(), 1);
    EXPECT_TRUE(DriveUntil({&b, &healthy}, [&] { return b.accepted(2) != nullptr; }));
  }
  // A new link from the liar, and a posted receive of `size` on it.
  RawPeer Open(size_t size, uint64_t tag, Request* request, Buffer& to, bool combine = false) {
    RawPeer peer = RawPeer::ConnectTo(b.address());
    int before = b.accepted_count;
    EXPECT_TRUE(peer.ShakeHands(b, 0, 3, ++links));
    EXPECT_TRUE(DriveUntil({&b}, [&] { return b.accepted_count > before; }));
    ReceiveTarget target{to.view().Slice(0, size)};
    if (combine) target.local = to.data(), target.combine = AddBytes;
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
  void ExpectHealthyGoesOn() {
    Request send, receive;
    Buffer from(healthy.transport(), 3000), to(b.transport(), 3000);
    from.FillPattern(4);
    ASSERT_EQ(to_b->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
    ASSERT_EQ(b.accepted(2)->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
    ASSERT_TRUE(DriveUntil({&b, &healthy}, [&] { return send.done() && receive.done(); }));
    ASSERT_EQ(to.CheckPattern(4, 3000), "");
  }
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
    ASSERT_TRUE(DriveUntil(
        {&liar.b}, [&] { return receive.done(); }, absl::Seconds(10)))
        << name;
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
  Node a(kTcp, 0, 3, kOneSocket);
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

TEST(TcpTransport, BothFamiliesAndOddSettingsCarryBytes) {
  const std::vector<std::vector<std::string>> variants = {
      {"tcp.family=ipv6"},
      {"tcp.sockets=1", "tcp.frame_bytes=4KiB"},
      {"tcp.sockets=7", "tcp.frame_bytes=5000"},  // rounded down to a multiple of 64
      {"tcp.buffer_bytes=4KiB"},
      {"tcp.sockets=3", "tcp.buffer_bytes=64KiB", "tcp.frame_bytes=16MiB"},
  };
  for (const auto& settings : variants) {
    SCOPED_TRACE(settings[0]);
    auto interfaces = ListInterfaces();
    bool v6 = settings[0] == "tcp.family=ipv6";
    if (v6 && std::none_of(interfaces->begin(), interfaces->end(), [](const Interface& one) {
          return one.loopback && one.address.family() == AF_INET6;
        })) {
      continue;  // a host without IPv6 on loopback
    }
    Request send, receive;
    Pair pair(kTcp, settings);
    EXPECT_EQ(pair.b.address()[0] == '[', v6) << pair.b.address();
    Buffer from(pair.a.transport(), 3000001), to(pair.b.transport(), 3000001);
    from.FillPattern(1);
    ASSERT_EQ(pair.send->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
    ASSERT_EQ(pair.receive->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
    ASSERT_TRUE(pair.Done({&send, &receive}));
    EXPECT_EQ(to.CheckPattern(1, to.size()), "");
  }
}

// A rank that computes for long, or stands in a debugger, is not dead: its host acknowledges.
TEST(TcpTransport, AStoppedReceiverMayBeStoppedForLongerThanDeadAfter) {
  constexpr size_t kBytes = 64 << 20;
  const std::vector<std::string> settings = {"tcp.dead_after=1s"};
  Child child([&](Child::Channel& channel) {
    Request receive;
    Node node(kTcp, 1, 2, settings);
    channel.Say(node.address());
    DriveUntil({&node}, [&] { return node.accepted(0) != nullptr; });
    Buffer to(node.transport(), kBytes);
    if (node.accepted(0)->PostReceive({1, 1}, {to.view()}, &receive) != Posted::kAccepted) return 1;
    Turn(node, 5);
    channel.Say("posted");
    if (channel.Hear() != "go") return 2;
    DriveUntil({&node}, [&] { return receive.done(); });
    channel.Say(receive.status().ok() ? to.CheckPattern(5, kBytes) : "failed");
    channel.Hear();
    return 0;
  });
  Request send;
  Node node(kTcp, 0, 2, settings);
  Buffer from(node.transport(), kBytes);
  from.FillPattern(5);
  SendLink* link = node.Connect(child.channel().Hear(), 1);
  pollfd fd{child.channel().in, POLLIN, 0};
  ASSERT_TRUE(DriveUntil({&node}, [&] { return poll(&fd, 1, 0) == 1; }));
  ASSERT_EQ(child.channel().Hear(), "posted");
  child.Signal(SIGSTOP);
  ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  EXPECT_FALSE(DriveUntil(
      {&node}, [&] { return send.done(); }, absl::Seconds(4)));
  EXPECT_TRUE(link->status().ok()) << link->status();
  child.Signal(SIGCONT);
  child.channel().Say("go");
  ASSERT_TRUE(DriveUntil({&node}, [&] { return send.done(); }));
  EXPECT_TRUE(send.status().ok()) << send.status();
  EXPECT_EQ(child.channel().Hear(), "");
}

// The receiver is slow, and its word is unread when the sender's whole process ends.
TEST(TcpTransport, WhatWasSentArrivesThoughTheTransportGoesAtOnce) {
  const size_t kBytes = 8 << 20;
  Node b(kTcp, 1, 2, {"tcp.sockets=1"});
  Request receive, never;
  Buffer to(b.transport(), kBytes), spare(b.transport(), 10);
  std::thread sender;
  std::atomic<bool> sent = false;
  {
    sender = std::thread([&, address = b.address()] {
      Node a(kTcp, 0, 2, {"tcp.sockets=1"});
      Buffer from(a.transport(), kBytes);
      from.FillPattern(3);
      Request send;
      SendLink* link = a.Connect(address, 1);
      ASSERT_EQ(link->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
      EXPECT_TRUE(DriveUntil({&a}, [&] { return send.done(); }));
      sent = true;
    });
    EXPECT_TRUE(DriveUntil({&b}, [&] { return b.accepted(0) != nullptr; }));
    ASSERT_EQ(b.accepted(0)->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
    // Stops reading as soon as the sender's kernel holds the rest.
    EXPECT_TRUE(DriveUntil({&b}, [&] { return sent.load(); }));
    EXPECT_EQ(b.accepted(0)->PostReceive({9, 1}, {spare.view()}, &never), Posted::kAccepted);
  }
  EXPECT_TRUE(DriveUntil({&b}, [&] { return never.done(); }));
  sender.join();
  EXPECT_TRUE(receive.status().ok()) << receive.status();
  EXPECT_EQ(to.CheckPattern(3, kBytes), "");
}

TEST(TcpTransport, ErrorsNameRankAddressAndInterface) {
  std::string address;
  { address = Node(kTcp, 1, 2).address(); }
  Node a(kTcp, 0, 2, {"transport.connect_timeout=300ms"});
  SendLink* link = a.Connect(address, 1);
  ASSERT_TRUE(DriveUntil({&a}, [&] { return !link->status().ok(); }));
  std::string text(link->status().message());
  for (const std::string& word : {std::string("rank 1"), address, std::string("interface lo"),
                                  std::string("Connection refused"), std::string("attempts"),
                                  std::string("transport.connect_timeout")}) {
    EXPECT_THAT(text, HasSubstr(word));
  }
}

TEST(TcpTransport, BadOptionsAreNamed) {
  Node b(kTcp, 1, 3);
  TransportOptions options = OptionsFor(5, 3, {});
  options.events = &b;
  EXPECT_EQ(TcpTransport::Create(options).status().code(), absl::StatusCode::kInvalidArgument);
  options = OptionsFor(0, 3, {"tcp.interface=nosuch"});
  options.events = &b;
  absl::Status status = TcpTransport::Create(options).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("nosuch"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("lo (ipv4)"));
}

}  // namespace
}  // namespace weft::net
