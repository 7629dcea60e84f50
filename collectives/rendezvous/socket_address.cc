#include "collectives/rendezvous/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace weft::collectives {

namespace {

absl::StatusOr<SocketAddress> UnixAddress(absl::string_view name) {
  sockaddr_un address{};
  if (name.empty() || name.size() > sizeof(address.sun_path) - 1) {
    return absl::InvalidArgumentError(absl::StrCat("'unix:", name,
                                                   "': the name of a Unix socket has 1 to ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  SocketAddress result;
  std::memcpy(&result.storage, &address, sizeof(address));
  result.size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return result;
}

}  // namespace

absl::Status CheckStoreAddress(absl::string_view address) {
  if (absl::ConsumePrefix(&address, kUnixPrefix)) return UnixAddress(address).status();
  return SplitHostPort(address).status();
}

int SocketAddress::port() const {
  if (local()) return 0;
  if (family() == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
}

bool SocketAddress::loopback() const {
  if (local()) return true;
  if (family() == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&address) ||
           (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
  }
  return ntohl(reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24 == 127;
}

std::string JoinHostPort(absl::string_view host, int port) {
  if (absl::StrContains(host, ":")) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
}

std::string ToString(const SocketAddress& address) {
  if (address.local()) {
    const auto* name = reinterpret_cast<const sockaddr_un*>(&address.storage)->sun_path + 1;
    size_t before = offsetof(sockaddr_un, sun_path) + 1;
    if (address.size <= before) return "unix:?";
    return absl::StrCat(kUnixPrefix, absl::string_view(name, address.size - before));
  }
  std::array<char, INET6_ADDRSTRLEN + 20> host{};
  if (address.family() == AF_INET) {
    const auto* ipv4 = reinterpret_cast<const sockaddr_in*>(&address.storage);
    inet_ntop(AF_INET, &ipv4->sin_addr, host.data(), host.size());
    return JoinHostPort(host.data(), address.port());
  }
  if (getnameinfo(address.get(), address.size, host.data(), host.size(), nullptr, 0,
                  NI_NUMERICHOST) != 0) {
    return "an unknown address";
  }
  return JoinHostPort(host.data(), address.port());
}

absl::StatusOr<std::pair<std::string, int>> SplitHostPort(absl::string_view text) {
  size_t colon = text.rfind(':');
  int port = -1;
  bool good = colon != absl::string_view::npos && absl::SimpleAtoi(text.substr(colon + 1), &port) &&
              port >= 0 && port <= 65535;
  absl::string_view host = good ? text.substr(0, colon) : "";
  if (good && absl::StartsWith(host, "[") && absl::EndsWith(host, "]")) {
    host = host.substr(1, host.size() - 2);
  } else if (good && absl::StrContains(host, ":")) {
    good = false;
  }
  if (!good) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", text, "' is no address; right are host:29500 and [::1]:29500"));
  }
  return std::pair<std::string, int>(host, port);
}

namespace {

absl::StatusOr<std::vector<SocketAddress>> LookUp(absl::string_view host_port, int flags) {
  if (absl::ConsumePrefix(&host_port, kUnixPrefix)) {
    WEFT_ASSIGN_OR_RETURN(SocketAddress address, UnixAddress(host_port));
    return std::vector<SocketAddress>{address};
  }
  WEFT_ASSIGN_OR_RETURN(auto parts, SplitHostPort(host_port));
  const auto& [host, port] = parts;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV | (host.empty() ? AI_PASSIVE : 0);
  addrinfo* list = nullptr;
  int error =
      getaddrinfo(host.empty() ? nullptr : host.c_str(), absl::StrCat(port).c_str(), &hints, &list);
  if (error != 0) {
    return absl::NotFoundError(
        absl::StrCat("cannot find host '", host, "': ", gai_strerror(error)));
  }
  std::vector<SocketAddress> addresses;
  for (addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    SocketAddress address;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.size = entry->ai_addrlen;
    // "::" before "0.0.0.0": it takes both families.
    bool first = host.empty() && address.family() == AF_INET6;
    addresses.insert(first ? addresses.begin() : addresses.end(), address);
  }
  freeaddrinfo(list);
  return addresses;
}

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> Resolve(absl::string_view host_port) {
  return LookUp(host_port, 0);
}

// Thousands of clients in one process give the same address of digits: the resolver is not asked.
absl::StatusOr<std::vector<SocketAddress>> ResolveNumeric(absl::string_view host_port) {
  if (!absl::StartsWith(host_port, kUnixPrefix)) {
    WEFT_ASSIGN_OR_RETURN(auto parts, SplitHostPort(host_port));
    sockaddr_in ipv4{};
    if (inet_pton(AF_INET, parts.first.c_str(), &ipv4.sin_addr) == 1) {
      ipv4.sin_family = AF_INET;
      ipv4.sin_port = htons(static_cast<uint16_t>(parts.second));
      SocketAddress address;
      std::memcpy(&address.storage, &ipv4, sizeof(ipv4));
      address.size = sizeof(ipv4);
      return std::vector<SocketAddress>{address};
    }
  }
  return LookUp(host_port, AI_NUMERICHOST);
}

}  // namespace weft::collectives
