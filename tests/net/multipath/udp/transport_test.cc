// The multipath transport on loopback: what the conformance suites (tests/net) do not ask of every
// transport.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/udp.h>
#include <sys/socket.h>

#include <array>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "net/multipath/udp/multipath_transport.h"
#include "tests/net/harness.h"
#include "tests/net/multipath/udp/sender_of.h"
#include "tests/scratch_folder.h"
#include "topology/plan/connection_plan.h"

namespace weft::net::multipath {
namespace {

using testing::HasSubstr;
constexpr TransportKind kMultipath = TransportKind::kMultipath;

const SocketStatistics& StatisticsOf(Node& node) {
  return dynamic_cast<MultipathTransport&>(node.transport()).statistics();
}

// A free range of ports, so that a test knows where the sockets are.
int FreePorts(int count) {
  for (int first = 21'000; first < 60'000; first += count) {
    std::deque<FileDescriptor> held;
    for (int i = 0; i < count; ++i) {
      FileDescriptor fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
      SocketAddress address = *SocketAddress::Parse(absl::StrCat("127.0.0.1:", first + i));
      if (bind(fd.get(), address.get(), address.size()) != 0) break;
      held.push_back(std::move(fd));
    }
    if (static_cast<int>(held.size()) == count) return first;
  }
  ADD_FAILURE() << "no free ports";
  return 0;
}

void Exchange(Pair& pair, size_t size, uint64_t seed) {
  Buffer from(pair.a.transport(), size), to(pair.b.transport(), size);
  from.FillPattern(seed);
  Request send, receive;
  ASSERT_EQ(pair.send->PostSend({seed, 5}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(pair.receive->PostReceive({seed, 5}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(pair.Done({&send, &receive}));
  ASSERT_TRUE(send.status().ok() && receive.status().ok()) << send.status() << receive.status();
  EXPECT_EQ(to.CheckPattern(seed, size), "");
}

TEST(MultipathTransportTest, EveryControllerPolicyAndWayOfSendingDeliversWhole) {
  std::vector<std::vector<std::string>> settings = {
      {"multipath.segments=false"},
      {"multipath.checksum=false"},
      {"multipath.authenticate_chunks=true"},
      {"multipath.authenticate_chunks=true", "multipath.mtu=1500"},
      {"multipath.paths=1"},
      {"multipath.paths=64"},
      {"multipath.mtu=1500"},
      {"multipath.mtu=65535"},
      {"multipath.piece_bytes=0"},
      {"multipath.buffer_bytes=64KiB", "multipath.gbps=1000",
       "multipath.controller=fixed:window=9"},
  };
  for (const char* one : {"fixed", "dcqcn", "swift:beta=0.6", "mswift", "hybrid", "nscc"}) {
    settings.push_back({absl::StrCat("multipath.controller=", one)});
  }
  for (PolicyKind policy : AllPolicies()) {
    settings.push_back({absl::StrCat("multipath.policy=", std::string(ToString(policy)))});
  }
  for (const auto& one : settings) {
    SCOPED_TRACE(one.front());
    Pair pair(kMultipath, one);
    for (size_t size : {size_t{0}, size_t{1}, size_t{5000}, size_t{1'000'001}}) {
      Exchange(pair, size, size + 1);
    }
  }
}

TEST(MultipathTransportTest, SettingsThatCannotBeAreRefusedByName) {
  auto refused = [](const std::string& setting) {
    Node listener(kMultipath, 0, 1);
    TransportOptions options = OptionsFor(0, 1, {setting});
    options.events = &listener;
    return std::string(CreateTransport(kMultipath, options).status().message());
  };
  EXPECT_THAT(refused("multipath.controller=swft"), HasSubstr("swift"));
  EXPECT_THAT(refused("multipath.controller=swift:bta=1"), HasSubstr("beta"));
  EXPECT_THAT(refused("multipath.controller=@/nowhere"), HasSubstr("'/nowhere'"));
  EXPECT_THAT(refused("multipath.controller=hpcc"), HasSubstr("telemetry"));
  EXPECT_THAT(refused("multipath.port=65535"), HasSubstr("multipath.port"));
  EXPECT_THAT(refused("multipath.mtu=100"), HasSubstr("100 bytes, too small"));
}

TEST(MultipathTransportTest, EndsWithDifferentSettingsAgree) {
  Node a(kMultipath, 0, 2, {"multipath.paths=7", "multipath.checksum=false", "multipath.mtu=1500"});
  Node b(kMultipath, 1, 2, {"multipath.paths=2", "multipath.mtu=3000"});
  SendLink* link = a.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return b.accepted(0) != nullptr; }));
  Buffer from(a.transport(), 300'000), to(b.transport(), 300'000);
  from.FillPattern(1);
  Request send, receive;
  ASSERT_EQ(link->PostSend({1, 5}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(b.accepted(0)->PostReceive({1, 5}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return send.done() && receive.done(); }));
  EXPECT_TRUE(receive.status().ok()) << receive.status();
  EXPECT_EQ(to.CheckPattern(1, to.size()), "");
}

TEST(MultipathTransportTest, EndsOfWhichOneAuthenticatesChunksTurnEachOtherAwayByName) {
  for (bool is_connector : {false, true}) {
    const std::vector<std::string> with = {"multipath.authenticate_chunks=true"};
    Node a(kMultipath, 0, 2, is_connector ? with : std::vector<std::string>());
    Node b(kMultipath, 1, 2, is_connector ? std::vector<std::string>() : with);
    SendLink* link = a.Connect(b.address(), 1);
    ASSERT_TRUE(DriveUntil({&a, &b}, [&] { return !link->status().ok(); }));
    EXPECT_THAT(
        std::string(link->status().message()),
        HasSubstr(absl::StrCat("multipath.authenticate_chunks differs: ",
                               is_connector ? "true at the connecting rank, false at the listening"
                                            : "false at the connecting rank, true at the listening",
                               " one; set it alike on every rank")));
    EXPECT_EQ(b.accepted(0), nullptr);
  }
}

// Each end has the plan in a folder of its own: reports pass between them by the link alone.
TEST(MultipathTransportTest, AsManyReportsAboutPathsAsAreKeptReachThePeer) {
  using topology::ConnectionPlan;
  std::array<ScratchFolder, 2> folders;
  std::vector<std::shared_ptr<ConnectionPlan>> plans;
  for (ScratchFolder& folder : folders) {
    folder.Write(std::string(topology::kConnectionPlanFile),
                 "weft-paths 1\nranks 2\nhost h0 127.0.0.1 leaf0\n");
    plans.push_back(*ConnectionPlan::Load(folder.path()));
  }
  std::string reports;
  for (size_t i = 0; i < topology::PathReports::kMost; ++i) {
    absl::StrAppend(&reports, "good spine", i % 8, " leaf", i / 8, " - ", i + 1, "\n");
  }
  ASSERT_GT(reports.size(), 4096u);  // several times a multipath address
  ASSERT_TRUE(plans[0]->Hear(reports).ok());
  Node a(kMultipath, 0, 2, {absl::StrCat("plan=", folders[0].path())});
  Node b(kMultipath, 1, 2, {absl::StrCat("plan=", folders[1].path())});
  SendLink* link = a.Connect(b.address(), 1);
  ASSERT_TRUE(DriveUntil({&a, &b}, [&] {
    return plans[1]->Reports() == plans[0]->Reports() || !link->status().ok();
  }));
  EXPECT_EQ(plans[1]->Reports(), plans[0]->Reports());
  EXPECT_TRUE(link->status().ok()) << link->status();
  EXPECT_TRUE(b.broken.empty());
}

TEST(MultipathTransportTest, UnauthenticatedDatagramsAreCountedAndChangeNothing) {
  int port = FreePorts(8);
  Pair pair(kMultipath, {"multipath.paths=4", absl::StrCat("multipath.port=", port)});
  Exchange(pair, 10'000, 1);
  FileDescriptor fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  Random random(1);
  constexpr int kUnauthenticated = 500;
  auto unauthenticated = [&] {
    return StatisticsOf(pair.a).unauthenticated + StatisticsOf(pair.b).unauthenticated;
  };
  for (int i = 0; i < kUnauthenticated; ++i) {
    std::string bytes(random.Below(300), '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    // As like ours as an outsider can make them.
    if (bytes.size() > kEnvelopeBytes + 4) bytes.replace(kEnvelopeBytes, 4, "WM\x01\x03", 4);
    SocketAddress to = *SocketAddress::Parse(absl::StrCat("127.0.0.1:", port + i % 8));
    ASSERT_EQ(sendto(fd.get(), bytes.data(), bytes.size(), 0, to.get(), to.size()),
              static_cast<ssize_t>(bytes.size()));
    ASSERT_TRUE(pair.Drive([&] { return unauthenticated() == i + 1; })) << i;
  }
  Exchange(pair, 3'000'000, 2);
  EXPECT_EQ(unauthenticated(), kUnauthenticated);
  EXPECT_TRUE(pair.a.broken.empty() && pair.b.broken.empty());
}

// Every datagram from the ports of `node` arrives as if a full queue had marked it.
void MarkEverythingFrom(int port, int paths) {
  int marked = 0;
  for (int fd = 3; fd < 1024; ++fd) {
    SocketAddress address = LocalAddress(fd);
    if (address.size() == 0 || address.port() < port || address.port() >= port + paths) continue;
    int congested = 3;
    if (setsockopt(fd, IPPROTO_IP, IP_TOS, &congested, sizeof(congested)) == 0) ++marked;
  }
  ASSERT_EQ(marked, paths);
}

TEST(MultipathTransportTest, MarksAreEchoedAndAnswered) {
  int port = FreePorts(4);
  Pair pair(kMultipath, {"multipath.paths=2", absl::StrCat("multipath.port=", port),
                         "multipath.controller=dcqcn:window=1", "multipath.base_rtt=100ms"});
  Exchange(pair, 4 << 20, 1);
  EXPECT_EQ(SenderOf(*pair.send)->statistics().marks, 0);
  Bytes before = SenderOf(*pair.send)->controller().window();
  MarkEverythingFrom(port, 2);
  Exchange(pair, 4 << 20, 2);
  EXPECT_GT(SenderOf(*pair.send)->statistics().marks, 0);
  EXPECT_LT(SenderOf(*pair.send)->controller().window(), before);
}

// Whatever the interface: but where it is told to keep to less, it does.
TEST(MultipathTransportTest, WithinAHostPacketsAreAsLargeAsLoopbackCarries) {
  auto packets = [](const std::vector<std::string>& settings) {
    Pair pair(kMultipath, settings);
    Exchange(pair, 8 << 20, 1);
    return SenderOf(*pair.send)->statistics().packets -
           SenderOf(*pair.send)->statistics().retransmissions;
  };
  EXPECT_LT(packets({}), 2 * ((8 << 20) / kChunkMax));
  EXPECT_GT(packets({"multipath.mtu=9000"}), (8 << 20) / 9000);
}

// Whether the kernel cuts one send into packets and joins them for one receive, on sockets that are
// nobody's.
bool JoinsPackets() {
  FileDescriptor from(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  FileDescriptor to(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in any{};  // any port
  any.sin_family = AF_INET;
  any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int joins = 1, segment = 1000;
  const timeval patience{.tv_sec = 10, .tv_usec = 0};
  if (bind(to.get(), reinterpret_cast<const sockaddr*>(&any), sizeof(any)) != 0 ||
      setsockopt(to.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) != 0 ||
      setsockopt(to.get(), IPPROTO_UDP, UDP_GRO, &joins, sizeof(joins)) != 0 ||
      setsockopt(from.get(), IPPROTO_UDP, UDP_SEGMENT, &segment, sizeof(segment)) != 0) {
    return false;
  }
  const SocketAddress target = LocalAddress(to.get());
  std::array<char, 8 * 1000> bytes{};
  const auto size = static_cast<ssize_t>(bytes.size());
  return sendto(from.get(), bytes.data(), bytes.size(), 0, target.get(), target.size()) == size &&
         recv(to.get(), bytes.data(), bytes.size(), 0) == size;
}

TEST(MultipathTransportTest, SegmentsGatherManyPacketsInOneCall) {
  if (!JoinsPackets()) GTEST_SKIP() << "this kernel does not join packets";
  auto calls = [](const std::string& segments) {
    Pair pair(kMultipath, {"multipath.mtu=1500", segments, "multipath.piece_bytes=64KiB"});
    Exchange(pair, 8 << 20, 1);
    const SocketStatistics& seen = StatisticsOf(pair.a);
    EXPECT_GT(seen.sent, (8 << 20) / 1500);
    return static_cast<double>(seen.sent) / static_cast<double>(StatisticsOf(pair.b).receive_calls);
  };
  const double with = calls("multipath.segments=true");
  EXPECT_GT(with, 5);
  EXPECT_GT(with, calls("multipath.segments=false"));
}

}  // namespace
}  // namespace weft::net::multipath
