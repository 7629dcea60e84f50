// The server of probes, over the loopback.
#include "topology/ecmp/echo_prober.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/file_descriptor.h"

namespace weft::topology {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

// That nothing has bound.
uint16_t FreePort() {
  const FileDescriptor probe(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  EXPECT_EQ(bind(probe.get(), reinterpret_cast<sockaddr*>(&address), size), 0);
  EXPECT_EQ(getsockname(probe.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
  return ntohs(address.sin_port);
}

// Sends what is answered, faster than it is: an answer costs more than a probe.
void Flood(uint16_t port, std::atomic<int64_t>& sent, const std::atomic<bool>& ends) {
  const FileDescriptor sender(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const sockaddr_in address = Loopback(port);
  ASSERT_EQ(connect(sender.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  const std::array<uint32_t, 2> probe{0x54505750, 0};
  while (!ends) {
    if (send(sender.get(), probe.data(), sizeof(probe), MSG_NOSIGNAL) > 0) ++sent;
  }
}

TEST(EchoServer, EndsWhileItIsFlooded) {
  const uint16_t port = FreePort();
  auto server = EchoServer::Open(*IpAddress::Parse("127.0.0.1"), port);
  ASSERT_TRUE(server.ok()) << server.status();
  std::atomic<int64_t> sent = 0;
  std::atomic<bool> ends = false;
  std::vector<std::thread> senders;
  for (int i = 0; i < 4; ++i) senders.emplace_back([&] { Flood(port, sent, ends); });
  const auto patience = std::chrono::seconds(30);
  const auto begin = std::chrono::steady_clock::now();
  while (sent < 10'000 && std::chrono::steady_clock::now() - begin < patience) {
    std::this_thread::yield();
  }
  std::future<void> ended = std::async(std::launch::async, [&] { server->reset(); });
  EXPECT_EQ(ended.wait_for(patience), std::future_status::ready);
  ends = true;
  for (std::thread& sender : senders) sender.join();
}

}  // namespace
}  // namespace weft::topology
