// Planned source ports: the file, and what the sockets then have.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <cstdio>
#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "net/tcp/source_ports.h"
#include "net/tcp/tcp_transport.h"
#include "tests/net/harness.h"

namespace weft::net {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(SourcePorts, ReadsTheLinesOfOneRank) {
  SourcePorts ports = *SourcePorts::Parse(
      "# rank peer ports\n0 1 49152 49301\n\n 1 0 50000\n0\t2 50001 # one\r\n", Rank(0), "plan");
  EXPECT_THAT(ports.For(Rank(1)), ElementsAre(49152, 49301));
  EXPECT_THAT(ports.For(Rank(2)), ElementsAre(50001));
  EXPECT_THAT(ports.For(Rank(3)), IsEmpty());
  EXPECT_THAT(SourcePorts::FromFile("", Rank(0))->For(Rank(1)), IsEmpty());
}

TEST(SourcePorts, NamesTheLineThatIsWrong) {
  auto message = [](absl::string_view text) {
    return std::string(SourcePorts::Parse(text, Rank(7), "plan").status().message());
  };
  EXPECT_THAT(message("0 1 5\n0 x 5\n"), HasSubstr("plan:2: "));
  EXPECT_THAT(message("1 1 5"), HasSubstr("two different ranks"));
  EXPECT_THAT(message("0 1"), HasSubstr("0 ports; a link has 1..64"));
  EXPECT_THAT(message("0 1 65536"), HasSubstr("\"65536\" is not in 1..65535"));
  EXPECT_THAT(message("0 1 -3"), HasSubstr("\"-3\""));
  EXPECT_THAT(message("0 1 9 9"), HasSubstr("port 9 is there twice"));
  EXPECT_THAT(message("0 1 9\n2 3 4\n0 1 8"), HasSubstr("plan:3: the link is in line 1"));
  std::string many = "0 1";
  for (int i = 1; i <= 65; ++i) absl::StrAppend(&many, " ", i);
  EXPECT_THAT(message(many), HasSubstr("65 ports"));
  absl::Status missing = SourcePorts::FromFile("/nonexistent/plan", Rank(0)).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nonexistent/plan"));
}

// The first of `count` ports in a row that are free, below those that the kernel hands out.
int FreePorts(int count) {
  static int next = 20000 + getpid() * 13 % 10000;
  for (int tries = 0; tries < 1000; ++tries) {
    std::vector<FileDescriptor> held;
    int first = next;
    bool good = true;
    for (int port = first; good && port < first + count; ++port) {
      held.emplace_back(socket(AF_INET, SOCK_STREAM, 0));
      auto address = SocketAddress::Parse(absl::StrCat("127.0.0.1:", port));
      good = bind(held.back().get(), address->get(), address->size()) == 0;
    }
    next = first + static_cast<int>(held.size());
    if (next > 32000) next = 20000;
    if (good) return first;
  }
  ADD_FAILURE() << "no free ports";
  return 0;
}

class PlanFile {
 public:
  explicit PlanFile(const std::string& text)
      : path_(absl::StrCat(testing::TempDir(), "/weft_ports_", getpid())) {
    std::ofstream(path_) << text;
  }
  ~PlanFile() { std::remove(path_.c_str()); }
  std::string setting() const { return absl::StrCat("tcp.source_ports=", path_); }

 private:
  std::string path_;
};

TEST(SourcePorts, AreThoseOfTheSockets) {
  FileDescriptor listener(socket(AF_INET, SOCK_STREAM, 0));
  auto loopback = SocketAddress::Parse("127.0.0.1:1");
  loopback->set_port(0);
  ASSERT_EQ(bind(listener.get(), loopback->get(), loopback->size()), 0);
  ASSERT_EQ(listen(listener.get(), 8), 0);
  int first = FreePorts(3);
  std::set<int> planned = {first, first + 1, first + 2};
  std::string line = "0 1";
  for (int port : planned) absl::StrAppend(&line, " ", port);
  PlanFile plan(line);
  Node a(TransportKind::kTcp, 0, 2, {plan.setting(), "tcp.sockets=1"});
  a.Connect(LocalAddress(listener.get()).ToString(), 1);
  std::set<int> seen;
  std::vector<FileDescriptor> accepted;
  ASSERT_TRUE(DriveUntil({&a}, [&] {
    pollfd ready{listener.get(), POLLIN, 0};
    while (poll(&ready, 1, 0) == 1) {
      accepted.emplace_back(accept(listener.get(), nullptr, nullptr));
      seen.insert(RemoteAddress(accepted.back().get()).port());
    }
    return seen.size() >= planned.size();
  }));
  EXPECT_EQ(seen, planned);
}

TEST(SourcePorts, CarryMessagesAndListenWhereTheyShould) {
  // Two ranks on one host: their plan and their listening ports do not collide.
  int base = FreePorts(4);
  PlanFile plan(absl::StrCat("0 1 ", base + 2, " ", base + 3, "\n"));
  std::vector<std::string> settings = {plan.setting(), absl::StrCat("tcp.listen_port=", base)};
  Pair pair(TransportKind::kTcp, settings);
  EXPECT_THAT(pair.b.address(), HasSubstr(absl::StrCat(":", base + 1)));
  Buffer from(pair.a.transport(), 1000001), to(pair.b.transport(), 1000001);
  from.FillPattern(3);
  Request send, receive;
  ASSERT_EQ(pair.send->PostSend({1, 1}, from.view(), &send), Posted::kAccepted);
  ASSERT_EQ(pair.receive->PostReceive({1, 1}, {to.view()}, &receive), Posted::kAccepted);
  ASSERT_TRUE(pair.Done({&send, &receive}));
  EXPECT_EQ(to.CheckPattern(3, to.size()), "");
  EXPECT_THAT(pair.send->Describe(), HasSubstr("2 sockets"));
}

TEST(SourcePorts, OneThatIsTakenIsNamed) {
  FileDescriptor holder(socket(AF_INET, SOCK_STREAM, 0));
  auto loopback = SocketAddress::Parse("127.0.0.1:1");
  loopback->set_port(0);
  ASSERT_EQ(bind(holder.get(), loopback->get(), loopback->size()), 0);
  ASSERT_EQ(listen(holder.get(), 1), 0);  // a listener shares its port with nobody
  int port = LocalAddress(holder.get()).port();
  PlanFile plan(absl::StrCat("0 1 ", port));
  Node a(TransportKind::kTcp, 0, 2, {plan.setting(), "transport.connect_timeout=200ms"});
  SendLink* link = a.Connect("127.0.0.1:9", 1);
  ASSERT_TRUE(DriveUntil({&a}, [&] { return !link->status().ok(); }));
  EXPECT_THAT(std::string(link->status().message()),
              HasSubstr(absl::StrCat("port ", port, " (tcp.source_ports, or plan)")));
}

TEST(SourcePorts, AListeningPortBeyondTheLastIsNamed) {
  Node b(TransportKind::kTcp, 1, 3);
  TransportOptions options = OptionsFor(2, 3, {"tcp.listen_port=65535"});
  options.events = &b;
  EXPECT_THAT(std::string(TcpTransport::Create(options).status().message()),
              HasSubstr("tcp.listen_port 65535 plus rank 2"));
}

}  // namespace
}  // namespace weft::net
