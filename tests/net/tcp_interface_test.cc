#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "net/tcp/interface.h"
#include "net/tcp/socket.h"

namespace weft::net {
namespace {

using testing::HasSubstr;

Interface One(const char* name, const char* address, bool loopback = false,
              bool link_local = false) {
  return {name, *SocketAddress::Parse(address), loopback, link_local};
}

const std::vector<Interface>& Host() {
  static const auto* host = new std::vector<Interface>{
      One("lo", "127.0.0.1:1", true),
      One("docker0", "172.17.0.1:1"),
      One("eth0", "[fe80::1]:1", false, true),
      One("eth0", "[fd00::5]:1"),
      One("eth0", "10.0.0.5:1"),
      One("eth1", "10.0.1.5:1"),
      One("eth10", "10.0.10.5:1"),
      One("ib0", "10.9.0.5:1"),
  };
  return *host;
}

std::string Chosen(const char* filter, const char* family = "any") {
  auto chosen = ChooseInterface(Host(), filter, family, "test");
  return chosen.ok() ? chosen->name + " " + chosen->address.ToString() : "none";
}

TEST(ChooseInterface, PrefersWhatOtherHostsCanReach) {
  EXPECT_EQ(Chosen(""), "eth0 10.0.0.5:1");
  EXPECT_EQ(Chosen("", "ipv6"), "eth0 [fd00::5]:1");
}

TEST(ChooseInterface, PrefixesInOrderOfTheirWords) {
  EXPECT_EQ(Chosen("eth1"), "eth1 10.0.1.5:1");
  EXPECT_EQ(Chosen("ib,eth"), "ib0 10.9.0.5:1");
  EXPECT_EQ(Chosen("eth"), "eth0 10.0.0.5:1");
  EXPECT_EQ(Chosen("docker"), "docker0 172.17.0.1:1");
}

TEST(ChooseInterface, ExactNames) {
  EXPECT_EQ(Chosen("=eth10"), "eth10 10.0.10.5:1");
  EXPECT_EQ(Chosen("=eth"), "none");
  EXPECT_EQ(Chosen("=nosuch,=ib0"), "ib0 10.9.0.5:1");
}

TEST(ChooseInterface, Exclusions) {
  EXPECT_EQ(Chosen("^eth"), "ib0 10.9.0.5:1");
  EXPECT_EQ(Chosen("^eth,ib"), "docker0 172.17.0.1:1");
  EXPECT_EQ(Chosen("^eth,ib,docker"), "lo 127.0.0.1:1");
  EXPECT_EQ(Chosen("^=eth0"), "eth1 10.0.1.5:1");
}

TEST(ChooseInterface, NoneFitsSaysWhatThereIs) {
  absl::Status status = ChooseInterface(Host(), "wlan", "any", "NCCL_SOCKET_IFNAME").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  for (const char* word : {"wlan", "NCCL_SOCKET_IFNAME", "eth10 (ipv4)", "lo (ipv4)"}) {
    EXPECT_THAT(std::string(status.message()), HasSubstr(word));
  }
}

TEST(ChooseInterface, TheEnvironmentOfNcclAndGlooIsHonoured) {
  Settings settings{LibrarySettings()};
  setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
  setenv("GLOO_SOCKET_IFNAME", "nosuch", 1);
  EXPECT_EQ(ChooseInterface(settings)->name, "lo");
  unsetenv("NCCL_SOCKET_IFNAME");
  EXPECT_THAT(std::string(ChooseInterface(settings).status().message()),
              HasSubstr("GLOO_SOCKET_IFNAME"));
  setenv("GLOO_SOCKET_IFNAME", "lo", 1);
  EXPECT_EQ(ChooseInterface(settings)->name, "lo");
  ASSERT_TRUE(settings.Set("tcp.interface", "^lo,=nosuch", "test").ok());
  auto chosen = ChooseInterface(settings);
  if (chosen.ok()) {
    EXPECT_NE(chosen->name, "lo") << "the setting goes before the environment";
  }
  unsetenv("GLOO_SOCKET_IFNAME");
}

TEST(SocketAddress, TextComesBackAsItWas) {
  for (const char* text : {"10.0.0.1:7000", "[fd00::1]:65535", "[::1]:1", "[fe80::1%lo]:7"}) {
    auto parsed = SocketAddress::Parse(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->ToString(), text);
  }
  for (const char* text :
       {"", ":", "10.0.0.1", "10.0.0.1:", "10.0.0.1:0", "10.0.0.1:65536", "10.0.0:7", "host:7",
        "[::1]", "::1:7", "[::g]:7", "[fe80::1%nosuch]:7"}) {
    EXPECT_FALSE(SocketAddress::Parse(text).ok()) << text;
  }
}

// A zone is a name within the host that wrote it.
TEST(ParsePeer, ZonesAreTheOwnEndsUnlessTheAddressIsThisHosts) {
  const SocketAddress own = One("lo", "[fe80::2%lo]:1").address;
  const auto parsed = [&](const std::string& text) {
    const auto peer = ParsePeer(text, own);
    return peer.ok() ? peer->ToString() : std::string(peer.status().message());
  };
  for (const char* text : {"[fe80::1%nosuch]:7000", "[fe80::1]:7000"}) {
    EXPECT_EQ(parsed(text), "[fe80::1%lo]:7000");
  }
  for (const char* text : {"[fd00::1]:7000", "10.0.0.1:7000"}) EXPECT_EQ(parsed(text), text);
  for (const char* text :
       {"[fe80::1%nosuch:7", "fe80::1%nosuch]:7", "[fe80::g%nosuch]:7", "%]", "]%"}) {
    EXPECT_THAT(parsed(text), HasSubstr("is no tcp address")) << text;
  }
  const auto interfaces = ListInterfaces();
  ASSERT_TRUE(interfaces.ok()) << interfaces.status();
  for (const Interface& one : *interfaces) {
    if (!one.link_local) continue;
    SocketAddress address = one.address;
    address.set_port(7);
    EXPECT_EQ(parsed(address.ToString()), address.ToString());
  }
  EXPECT_THAT(
      std::string(
          ParsePeer("[fe80::1%nosuch]:7", One("lo", "10.0.0.1:1").address).status().message()),
      HasSubstr("nosuch"));
}

TEST(LooksDead, OnlySilenceThatWasAskedTwiceIsDeath) {
  tcp_info info{};
  info.tcpi_last_ack_recv = 60000;  // an idle connection, or one between two probes
  EXPECT_FALSE(LooksDead(info, absl::Seconds(20)));
  info.tcpi_probes = 1;  // the answer to a window probe is on its way
  EXPECT_FALSE(LooksDead(info, absl::Seconds(20)));
  info.tcpi_probes = 2;
  EXPECT_TRUE(LooksDead(info, absl::Seconds(20)));
  info.tcpi_probes = 0, info.tcpi_retransmits = 5;
  EXPECT_TRUE(LooksDead(info, absl::Seconds(20)));
  info.tcpi_last_ack_recv = 19999;  // loss, but the host still answers
  EXPECT_FALSE(LooksDead(info, absl::Seconds(20)));
}

}  // namespace
}  // namespace weft::net
