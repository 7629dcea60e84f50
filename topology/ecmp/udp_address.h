// An IpAddress with a port as system calls want it; and sockets whose path can be predicted.
#ifndef WEFT_TOPOLOGY_ECMP_UDP_ADDRESS_H_
#define WEFT_TOPOLOGY_ECMP_UDP_ADDRESS_H_

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstring>

#include "topology/ecmp/five_tuple.h"

namespace weft::topology {

struct UdpAddress {
  sockaddr_storage storage{};
  socklen_t size = 0;
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

inline UdpAddress MakeUdpAddress(const IpAddress& ip, uint16_t port) {
  UdpAddress out;
  if (ip.v6) {
    auto* v6 = reinterpret_cast<sockaddr_in6*>(&out.storage);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    std::memcpy(&v6->sin6_addr, ip.bytes.data(), 16);
    out.size = sizeof(sockaddr_in6);
  } else {
    auto* v4 = reinterpret_cast<sockaddr_in*>(&out.storage);
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    std::memcpy(&v4->sin_addr, ip.bytes.data(), 4);
    out.size = sizeof(sockaddr_in);
  }
  return out;
}

// Has an IPv6 socket send flow label 0. Linux draws a label for each socket otherwise, which some
// switches hash. Where the sysctl net.ipv6.auto_flowlabels is 3, the kernel draws one all the same.
inline void SendFlowLabelZero(int fd) {
  const int off = 0;
  setsockopt(fd, IPPROTO_IPV6, IPV6_AUTOFLOWLABEL, &off, sizeof(off));
}

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_UDP_ADDRESS_H_
