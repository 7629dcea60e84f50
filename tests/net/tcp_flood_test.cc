// Peers that connect and do not prove that they belong to the job: what a process loses to them is
// bounded, and the job's own ranks get in meanwhile. Time is an argument here.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <algorithm>
#include <deque>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "net/tcp/acceptor.h"
#include "tests/net/raw_peer.h"

namespace weft::net {
namespace {

constexpr TransportKind kTcp = TransportKind::kTcp;

// From an address of its own of this host's 127/8.
RawPeer ConnectFrom(const std::string& from, const std::string& to) {
  auto source = SocketAddress::Parse(absl::StrCat(from, ":1"));
  source->set_port(0);
  auto target = SocketAddress::Parse(to);
  FileDescriptor fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(bind(fd.get(), source->get(), source->size()), 0);
  EXPECT_EQ(connect(fd.get(), target->get(), target->size()), 0);
  return RawPeer(std::move(fd));
}

int64_t DescriptorsOpen() {
  const std::filesystem::directory_iterator all("/proc/self/fd");
  return std::distance(begin(all), end(all)) - 1;  // of the iterator itself
}

// A listener in a process that may have 256 descriptors, 16 of them for unproven peers.
class Flood : public testing::Test {
 protected:
  static constexpr int64_t kLimit = 256;
  void SetUp() override {
    getrlimit(RLIMIT_NOFILE, &before_);
    if (before_.rlim_max < 256) GTEST_SKIP() << "at most " << before_.rlim_max << " descriptors";
    rlimit limit{kLimit, before_.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    lines = 0;
    SetLogSink([](LogLevel level, absl::string_view) { lines += level >= LogLevel::kWarn; });
  }
  void TearDown() override {
    SetLogSink(nullptr);
    setrlimit(RLIMIT_NOFILE, &before_);
  }
  void TurnAt(absl::Time now) {
    for (int i = 0; i < 20; ++i) b_.transport().Progress(now);
  }
  static bool Closed(RawPeer& peer) {
    while (!peer.Hear().empty()) {
    }
    return peer.closed();
  }
  static int CountClosed(std::deque<RawPeer>& peers) {
    return static_cast<int>(std::count_if(peers.begin(), peers.end(), Closed));
  }
  static inline int lines = 0;
  const int most_ = static_cast<int>(UnprovenPeersMax(kLimit));
  const absl::Time start_ = Now();
  Node b_{kTcp, 1, 3, {"tcp.sockets=1"}};
  rlimit before_{};
};

TEST_F(Flood, TheOldestGivesWayAndNobodyBeforeItsTime) {
  ASSERT_EQ(most_, 16);
  std::deque<RawPeer> peers;
  for (int i = 0; i < 2 * most_; ++i) peers.push_back(RawPeer::ConnectTo(b_.address()));
  const int64_t descriptors = DescriptorsOpen();
  TurnAt(start_);
  TurnAt(start_ + kProofGrace - absl::Nanoseconds(1));
  EXPECT_EQ(CountClosed(peers), 0);
  EXPECT_EQ(DescriptorsOpen(), descriptors + most_);
  // Asleep until the first of them may be closed, although more wait.
  EXPECT_EQ(b_.transport().NextDeadline(), start_ + kProofGrace);
  EXPECT_FALSE(b_.transport().Progress(start_ + kProofGrace - absl::Nanoseconds(1)));
  TurnAt(start_ + kProofGrace);
  EXPECT_EQ(CountClosed(peers), most_);
  for (int i = 0; i < most_; ++i) EXPECT_TRUE(peers[static_cast<size_t>(i)].closed()) << i;
  EXPECT_EQ(DescriptorsOpen(), descriptors + most_);
}

TEST_F(Flood, NobodyIsClosedForTheSakeOfNobody) {
  std::deque<RawPeer> peers;
  for (int i = 0; i < most_; ++i) peers.push_back(RawPeer::ConnectTo(b_.address()));
  TurnAt(start_);
  TurnAt(start_ + 2 * kProofGrace);
  EXPECT_EQ(CountClosed(peers), 0);
  peers.push_back(RawPeer::ConnectTo(b_.address()));
  TurnAt(start_ + 3 * kProofGrace);
  EXPECT_EQ(CountClosed(peers), 1);
}

TEST_F(Flood, OfOneNetworkLeavesTheOthersAlone) {
  RawPeer slow = ConnectFrom("127.0.0.3", b_.address());  // long before all others
  TurnAt(start_);
  std::deque<RawPeer> peers;
  for (int round = 1; round < 6; ++round) {
    for (int i = 0; i < most_; ++i) peers.push_back(ConnectFrom("127.0.0.2", b_.address()));
    TurnAt(start_ + round * kProofGrace);
  }
  EXPECT_GE(CountClosed(peers), 3 * most_);
  EXPECT_FALSE(Closed(slow));
}

TEST_F(Flood, ThoseWhoProveThemselvesMakeRoom) {
  std::deque<RawPeer> peers;
  for (int i = 0; i < most_; ++i) peers.push_back(RawPeer::ConnectTo(b_.address()));
  TurnAt(start_);
  RawPeer waits = RawPeer::ConnectTo(b_.address());
  TurnAt(start_);
  EXPECT_EQ(waits.Hear(), "");
  peers[3].Close();
  TurnAt(start_);
  EXPECT_NE(waits.Hear(), "");       // the challenge
  TurnAt(start_ + 2 * kProofGrace);  // the pause that was begun is over for good
  RawPeer later = RawPeer::ConnectTo(b_.address());
  TurnAt(start_ + 3 * kProofGrace);
  EXPECT_NE(later.Hear(), "");
}

TEST_F(Flood, WarningsAreCountedInsteadOfRepeated) {
  absl::Time now = start_;
  for (int i = 0; i < 300; ++i) {  // garbage
    RawPeer peer = RawPeer::ConnectTo(b_.address());
    peer.Say("GET / HTTP/1.0\r\n\r\n");
    TurnAt(now);
  }
  EXPECT_EQ(lines, LogThrottle::kLines);
  lines = 0;
  for (int round = 0; round < 20; ++round) {  // closed for another
    std::deque<RawPeer> peers;
    for (int i = 0; i < most_; ++i) peers.push_back(RawPeer::ConnectTo(b_.address()));
    TurnAt(now += kProofGrace);
    std::deque<RawPeer> more;
    for (int i = 0; i < most_; ++i) more.push_back(RawPeer::ConnectTo(b_.address()));
    TurnAt(now += kProofGrace);
  }
  EXPECT_EQ(lines, LogThrottle::kLines);
}

TEST_F(Flood, TheLastDescriptorsAreLeftForFiles) {
  const int64_t reserved = DescriptorsReserved(kLimit);
  std::vector<FileDescriptor> hoard;
  while (DescriptorsOpen() < kLimit - reserved - 40)
    hoard.emplace_back(open("/dev/null", O_RDONLY));
  RawPeer early = RawPeer::ConnectTo(b_.address());
  TurnAt(start_);
  EXPECT_NE(early.Hear(), "");
  while (DescriptorsOpen() < kLimit - reserved) hoard.emplace_back(open("/dev/null", O_RDONLY));
  // The listener's end of the next one is among those that are left for files.
  RawPeer late = RawPeer::ConnectTo(b_.address());
  TurnAt(start_);
  EXPECT_EQ(late.Hear(), "");
  EXPECT_TRUE(late.closed());
  EXPECT_FALSE(early.closed());
  TurnAt(start_ + 2 * kProofGrace);
  RawPeer later = RawPeer::ConnectTo(b_.address());
  TurnAt(start_ + 3 * kProofGrace);
  EXPECT_NE(later.Hear(), "");  // in the place of the early one
  EXPECT_TRUE(Closed(early));
}

// 1,500 that connect and say nothing, and the same again and again, in another process.
TEST(TcpFlood, LeavesFilesToTheProcessAndLetsItsPeersIn) {
  Child flood([](Child::Channel& channel) {
    rlimit limit{};
    getrlimit(RLIMIT_NOFILE, &limit);
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_max < 1600) return 77;
    auto target = SocketAddress::Parse(channel.Hear());
    std::deque<FileDescriptor> sockets;
    auto knock = [&] {
      FileDescriptor fd(socket(target->family(), SOCK_STREAM | SOCK_NONBLOCK, 0));
      (void)!connect(fd.get(), target->get(), target->size());  // under way, or refused
      sockets.push_back(std::move(fd));
    };
    while (sockets.size() < 1500) knock();
    channel.Say("come");
    pollfd over{channel.in, POLLIN, 0};
    while (poll(&over, 1, 1) == 0) {
      for (int i = 0; i < 10; ++i) knock(), sockets.pop_front();
    }
    return 0;
  });
  Child child([&](Child::Channel& channel) {
    rlimit limit{1024, 1024};
    if (setrlimit(RLIMIT_NOFILE, &limit) != 0) return 1;
    SetLogLevel(LogLevel::kOff);
    Node b(kTcp, 1, 3, {"tcp.sockets=2"});
    channel.Say(b.address());
    pollfd told{channel.in, POLLIN, 0};
    int64_t most = 0;
    int linked = 0;
    auto turn = [&] {
      most = std::max(most, DescriptorsOpen());
      if (b.accepted(0) == nullptr) return poll(&told, 1, 0) == 1;
      b.Destroy(b.accepted(0));
      channel.Say(absl::StrCat("linked ", ++linked));
      return false;
    };
    if (!DriveUntil({&b}, turn)) return 2;
    channel.Say(absl::StrCat(most));
    channel.Hear();
    return 0;
  });
  const std::string address = child.channel().Hear();
  flood.channel().Say(address);
  if (flood.channel().Hear() != "come") GTEST_SKIP() << "fewer than 1,600 descriptors";
  Node a(kTcp, 0, 3, {"tcp.sockets=2"});
  for (int i = 1; i <= 3; ++i) {
    SendLink* link = a.Connect(address, 1);
    pollfd said{child.channel().in, POLLIN, 0};
    ASSERT_TRUE(DriveUntil({&a}, [&] { return poll(&said, 1, 0) == 1; })) << link->status();
    EXPECT_EQ(child.channel().Hear(), absl::StrCat("linked ", i));
    a.Destroy(link);
  }
  flood.channel().Say("over");
  EXPECT_EQ(flood.Wait(), 0);
  child.channel().Say("over");
  const std::string most = child.channel().Hear();
  ASSERT_NE(most, "");
  EXPECT_LT(std::stoi(most), 200);
}

}  // namespace
}  // namespace weft::net
