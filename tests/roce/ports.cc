// roce_ports INTERFACE...: counts RoCE v2 packets that arrive there by UDP source port, until it is
// told to end (SIGTERM); then a line "port N packets M" for each.
#include <arpa/inet.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <map>
#include <vector>

namespace {

volatile sig_atomic_t g_end = 0;
constexpr uint16_t kRocePort = 4791;

// The source port of a RoCE v2 packet behind an IPv4 header; 0: something else.
uint16_t SourcePort(const uint8_t* packet, ssize_t size) {
  if (size < 28 || packet[0] >> 4 != 4 || packet[9] != 17) return 0;
  const size_t header = (packet[0] & 15u) * 4u;
  if (static_cast<size_t>(size) < header + 8) return 0;
  uint16_t ports[2];
  std::memcpy(ports, packet + header, sizeof ports);
  return ntohs(ports[1]) == kRocePort ? ntohs(ports[0]) : 0;
}

}  // namespace

int main(int argc, char** argv) {
  struct sigaction action {};
  action.sa_handler = [](int) { g_end = 1; };
  sigaction(SIGTERM, &action, nullptr);
  std::vector<pollfd> sockets;
  for (int i = 1; i < argc; ++i) {
    const int fd = socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_IP));
    sockaddr_ll address{};
    address.sll_family = AF_PACKET;
    address.sll_protocol = htons(ETH_P_IP);
    address.sll_ifindex = static_cast<int>(if_nametoindex(argv[i]));
    if (fd < 0 || bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) {
      std::perror(argv[i]);
      return 1;
    }
    sockets.push_back({fd, POLLIN, 0});
  }
  std::puts("counting");
  std::fflush(stdout);
  std::map<uint16_t, uint64_t> packets;
  while (g_end == 0) {
    if (poll(sockets.data(), sockets.size(), 200) <= 0) continue;
    for (const pollfd& one : sockets) {
      if ((one.revents & POLLIN) == 0) continue;
      uint8_t packet[128];
      sockaddr_ll from{};
      socklen_t length = sizeof from;
      const ssize_t size =
          recvfrom(one.fd, packet, sizeof packet, 0, reinterpret_cast<sockaddr*>(&from), &length);
      if (from.sll_pkttype == PACKET_OUTGOING) continue;
      if (const uint16_t port = SourcePort(packet, size)) ++packets[port];
    }
  }
  for (const auto& [port, count] : packets) {
    std::printf("port %u packets %llu\n", port, static_cast<unsigned long long>(count));
  }
  return 0;
}
