#include "topology/ecmp/udp_prober.h"

#include <linux/errqueue.h>
#include <netinet/icmp6.h>
#include <netinet/in.h>
#include <netinet/ip_icmp.h>
#include <poll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "topology/ecmp/udp_address.h"

namespace weft::topology {
namespace {

// What stands for a router: its IPv4 address, or a mix of the two halves of its IPv6 address.
uint64_t NameOf(const sockaddr* offender) {
  if (offender->sa_family == AF_INET) {
    return ntohl(reinterpret_cast<const sockaddr_in*>(offender)->sin_addr.s_addr);
  }
  std::array<uint64_t, 2> halves{};
  std::memcpy(halves.data(), &reinterpret_cast<const sockaddr_in6*>(offender)->sin6_addr, 16);
  return halves[0] * 0x9E3779B97F4A7C15ULL ^ halves[1];
}

HopAnswer Understand(const sock_extended_err& error) {
  bool icmp = error.ee_origin == SO_EE_ORIGIN_ICMP, icmp6 = error.ee_origin == SO_EE_ORIGIN_ICMP6;
  bool expired = (icmp && error.ee_type == ICMP_TIME_EXCEEDED) ||
                 (icmp6 && error.ee_type == ICMP6_TIME_EXCEEDED);
  bool refused =
      (icmp && error.ee_type == ICMP_DEST_UNREACH && error.ee_code == ICMP_PORT_UNREACH) ||
      (icmp6 && error.ee_type == ICMP6_DST_UNREACH && error.ee_code == ICMP6_DST_UNREACH_NOPORT);
  if (refused) return {HopAnswer::Kind::kTarget, 0};
  if (!expired) return {};
  return {HopAnswer::Kind::kRouter, NameOf(SO_EE_OFFENDER(&error))};
}

int64_t MonotonicMilliseconds() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000 + now.tv_nsec / 1'000'000;
}

}  // namespace

UdpProber::~UdpProber() {
  for (const auto& [_, fd] : sockets_) close(fd);
}

absl::StatusOr<int> UdpProber::Socket(uint16_t source_port) {
  if (auto known = sockets_.find(source_port); known != sockets_.end()) return known->second;
  std::string doing = absl::StrCat("probe from UDP port ", source_port);
  bool v6 = options_.source.v6;
  int fd = socket(v6 ? AF_INET6 : AF_INET, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return ErrnoStatus(errno, doing);
  sockets_[source_port] = fd;
  if (v6) SendFlowLabelZero(fd);
  int on = 1;
  UdpAddress source = MakeUdpAddress(options_.source, source_port);
  UdpAddress target = MakeUdpAddress(options_.target, options_.target_port);
  bool good = setsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_RECVERR : IP_RECVERR, &on,
                         sizeof(on)) == 0 &&
              bind(fd, source.get(), source.size) == 0 &&
              connect(fd, target.get(), target.size) == 0;
  if (!good) return ErrnoStatus(errno, doing);
  return fd;
}

absl::StatusOr<int> UdpProber::Send(uint16_t source_port, int ttl) {
  WEFT_ASSIGN_OR_RETURN(int fd, Socket(source_port));
  while (Hear(fd) != HopAnswer()) {  // late answers to earlier questions
  }
  bool v6 = options_.source.v6;
  if (setsockopt(fd, v6 ? IPPROTO_IPV6 : IPPROTO_IP, v6 ? IPV6_UNICAST_HOPS : IP_TTL, &ttl,
                 sizeof(ttl)) != 0) {
    return ErrnoStatus(errno, absl::StrCat("set time to live ", ttl));
  }
  char byte = 0;
  // An error that is pending on the socket is reported once, by the next call, whichever it is.
  for (int i = 0; send(fd, &byte, 1, 0) < 0; ++i) {
    if (i == 3) return ErrnoStatus(errno, absl::StrCat("probe from UDP port ", source_port));
  }
  return fd;
}

absl::StatusOr<HopAnswer> UdpProber::Ask(uint16_t source_port, int ttl) {
  WEFT_ASSIGN_OR_RETURN(const int fd, Send(source_port, ttl));
  return Await({fd})[0];
}

std::vector<HopAnswer> UdpProber::AskAll(absl::Span<const uint16_t> source_ports, int ttl) {
  std::vector<int> sockets;
  for (uint16_t port : source_ports) sockets.push_back(Send(port, ttl).value_or(-1));
  return Await(sockets);
}

std::vector<HopAnswer> UdpProber::Await(absl::Span<const int> sockets) const {
  std::vector<HopAnswer> answers(sockets.size());
  std::vector<pollfd> waits;
  for (int fd : sockets) waits.push_back({fd, 0, 0});  // poll() leaves out those that are negative
  auto open = std::count_if(sockets.begin(), sockets.end(), [](int fd) { return fd >= 0; });
  const int64_t deadline = MonotonicMilliseconds() + absl::ToInt64Milliseconds(options_.timeout);
  for (int64_t left = deadline - MonotonicMilliseconds(); open > 0 && left >= 0;
       left = deadline - MonotonicMilliseconds()) {
    poll(waits.data(), waits.size(), static_cast<int>(left));
    for (size_t i = 0; i < waits.size(); ++i) {
      if (waits[i].fd < 0) continue;
      answers[i] = Hear(waits[i].fd);
      if (answers[i].kind == HopAnswer::Kind::kSilent) continue;
      waits[i].fd = -1;
      --open;
    }
  }
  return answers;
}

HopAnswer UdpProber::Hear(int fd) const {
  std::array<char, 64> payload;
  alignas(cmsghdr) std::array<char, 512> control;
  iovec piece{payload.data(), payload.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();
  if (recvmsg(fd, &message, MSG_ERRQUEUE | MSG_DONTWAIT) < 0) return {};
  for (cmsghdr* one = CMSG_FIRSTHDR(&message); one != nullptr; one = CMSG_NXTHDR(&message, one)) {
    bool error = (one->cmsg_level == IPPROTO_IP && one->cmsg_type == IP_RECVERR) ||
                 (one->cmsg_level == IPPROTO_IPV6 && one->cmsg_type == IPV6_RECVERR);
    if (error) return Understand(*reinterpret_cast<const sock_extended_err*>(CMSG_DATA(one)));
  }
  return {};
}

std::string RouterName(const HopAnswer& answer, bool v6) {
  if (answer.kind != HopAnswer::Kind::kRouter) return "";
  if (v6) return absl::StrFormat("v6-%016x", answer.router);
  return IpAddress::V4(static_cast<uint32_t>(answer.router)).ToString();
}

}  // namespace weft::topology
