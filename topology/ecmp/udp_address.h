// An IpAddress with a port as system calls want it.
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

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_UDP_ADDRESS_H_
