// What only tcp has: raw sockets at its listener, descriptors that run out, settings. Its frames:
// tcp_frames_test.cc.
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <deque>
#include <thread>

#include "absl/strings/str_cat.h"
#include "net/tcp/interface.h"
#include "net/tcp/socket.h"
#include "net/tcp/tcp_transport.h"
#include "tests/net/raw_peer.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

constexpr TransportKind kTcp = TransportKind::kTcp;
const std::vector<std::string> kOneSocket = {"tcp.sockets=1"};

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

TEST(TcpListener, GarbageClosesThatSocketOnly) {
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

TEST(TcpListener, AHandshakeCutAtEveryByteLeavesNothingBehind) {
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

TEST(TcpListener, HalfOpenConnectionsAreClosedAtTheirDeadline) {
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

TEST(TcpListener, SocketsOfOneLinkAreGroupedWhateverTheirOrder) {
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

// What the transports above say to each other goes to one place of the link, in order.
TEST(TcpListener, LinksOfTransportsAboveHaveOneSocket) {
  Node b(TransportKind::kMultipath, 1, 2);
  const auto shakes = [&](uint16_t count) {
    RawPeer peer = RawPeer::ConnectTo(b.address());
    const LinkParameters parameters = {.link_id = 7, .index = 0, .count = count};
    return peer.ShakeHands(b, 0, 2, parameters.Encode() + "udp ", HandshakePurpose::kMultipathLink);
  };
  EXPECT_FALSE(shakes(2));
  EXPECT_TRUE(shakes(1));
}

TEST(TcpListener, AnAttemptThatWasGivenUpDoesNotMixWithTheNext) {
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

TEST(TcpListener, APeerThatListensLaterIsReached) {
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

TEST(TcpListener, APeerThatListenedAndRefusesHasGone) {
  Node a(kTcp, 0, 2, {"transport.connect_timeout=1h"},
         [](TransportOptions& options) { options.peers_listen = true; });
  std::string address;
  { address = Node(kTcp, 1, 2).address(); }
  SendLink* link = a.Connect(address, 1);
  ASSERT_TRUE(DriveUntil({&a}, [&] { return !link->status().ok(); }));
  EXPECT_EQ(link->status().code(), absl::StatusCode::kUnavailable) << link->status();
}

TEST(TcpListener, SomethingElseAtTheAddressIsRecognised) {
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

TEST(TcpSocket, APlannedFlowHasNoMoreInFlightThanItsRateNeeds) {
  const auto buffer = [](FlowEnd end, uint64_t rate) {
    SocketAddress any = *SocketAddress::Parse("127.0.0.1:1");
    any.set_port(0);
    absl::StatusOr<FileDescriptor> listener = Listen(any, {});
    absl::StatusOr<FileDescriptor> fd = StartConnect(LocalAddress(listener.value().get()), {}, {});
    LimitInFlight(fd.value().get(), end, rate, {});
    int bytes = 0;
    socklen_t size = sizeof(bytes);
    getsockopt(fd->get(), SOL_SOCKET, end == FlowEnd::kSends ? SO_SNDBUF : SO_RCVBUF, &bytes,
               &size);
    return bytes;
  };
  // A receiver's buffer is twice its window.
  for (const auto& [end, part] :
       {std::pair(FlowEnd::kSends, 1), std::pair(FlowEnd::kReceives, 2)}) {
    const int usual = buffer(end, 0);
    EXPECT_EQ(buffer(end, 100'000), part * (16 << 10));
    // 2 * rate * 2 ms, and a round trip on loopback.
    EXPECT_GE(buffer(end, 10'000'000), part * 40'000);
    EXPECT_LT(buffer(end, 10'000'000), part * 80'000);
    EXPECT_EQ(buffer(end, 1'000'000'000), usual);
  }
}

// What the connecting end knows of a flow by its plan, the accepting end is told.
TEST(TcpListener, AFlowsPlannedRateLimitsTheWindowOfTheSocketThatIsAccepted) {
  // The size of the receive buffer that this process has at the other end of `peer`.
  const auto receive_buffer = [](const RawPeer& peer) {
    int bytes = 0;
    for (int fd = 3; fd < 1024; ++fd) {
      const SocketAddress far = RemoteAddress(fd);
      socklen_t size = sizeof(bytes);
      if (far.ToString() == LocalAddress(peer.fd()).ToString()) {
        getsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, &size);
      }
    }
    return bytes;
  };
  const auto accepted_with = [&](uint64_t rate, const std::vector<std::string>& settings) {
    Node b(kTcp, 1, 2, settings);
    RawPeer peer = RawPeer::ConnectTo(b.address());
    const LinkParameters parameters = {.link_id = 7, .index = 0, .count = 1, .rate = rate};
    EXPECT_TRUE(peer.ShakeHands(b, 0, 2, parameters));
    EXPECT_TRUE(DriveUntil({&b}, [&] { return b.accepted_count == 1; }));
    return receive_buffer(peer);
  };
  EXPECT_GT(accepted_with(0, {}), 32 << 10);
  EXPECT_EQ(accepted_with(100'000, {}), 32 << 10);
  EXPECT_EQ(accepted_with(100'000, {"tcp.buffer_bytes=64KiB"}), 128 << 10) << "what is asked for";
}

// A planned link has a socket on each of its paths: messages that are too small to be striped must
// not leave all but one of them idle.
TEST(TcpTransport, MessagesOfOneFrameTakeTurnsOnTheSockets) {
  Pair pair(kTcp, {"tcp.sockets=3"});
  constexpr int kMessages = 24;
  constexpr size_t kBytes = 128 << 10;
  Buffer from(pair.a.transport(), kBytes), to(pair.b.transport(), kBytes);
  for (int i = 0; i < kMessages; ++i) {
    Request send, receive;
    const auto tag = static_cast<uint64_t>(i);
    ASSERT_EQ(pair.receive->PostReceive({1, tag}, {to.view()}, &receive), Posted::kAccepted);
    ASSERT_EQ(pair.send->PostSend({1, tag}, from.view(), &send), Posted::kAccepted);
    ASSERT_TRUE(pair.Done({&send, &receive}));
  }
  const std::vector<LaneReport> lanes = pair.receive->Lanes();
  ASSERT_EQ(lanes.size(), 3u);
  for (const LaneReport& lane : lanes) {
    EXPECT_GT(lane.bytes, kMessages / 4 * kBytes) << lane.name;
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
