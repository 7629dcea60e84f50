#include "base/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace weft {

SocketAddress::SocketAddress(const sockaddr* address, socklen_t size)
    : size_(std::min<socklen_t>(size, sizeof(storage_))) {
  std::memcpy(&storage_, address, size_);
}

absl::StatusOr<SocketAddress> SocketAddress::Parse(absl::string_view text) {
  auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("\"", text, "\" is no tcp address: ", why,
                                                   "; right are 10.0.0.1:7000 and [fd00::1]:7000"));
  };
  size_t colon = text.rfind(':');
  if (colon == absl::string_view::npos) return bad("the port is missing");
  uint32_t port = 0;
  if (!absl::SimpleAtoi(text.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return bad("the port is not in 1..65535");
  }
  std::string host(text.substr(0, colon));
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_port = htons(static_cast<uint16_t>(port));
    if (size_t percent = host.find('%'); percent != std::string::npos) {
      std::string scope = host.substr(percent + 1);
      host.resize(percent);
      address.sin6_scope_id = if_nametoindex(scope.c_str());
      if (address.sin6_scope_id == 0) {
        return bad(absl::StrCat("this host has no interface \"", scope, "\""));
      }
    }
    if (inet_pton(AF_INET6, host.c_str(), &address.sin6_addr) != 1) {
      return bad("the part in brackets is not IPv6");
    }
    return SocketAddress(reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  if (inet_pton(AF_INET, host.c_str(), &address.sin_addr) != 1) {
    return bad("the host part is not IPv4");
  }
  return SocketAddress(reinterpret_cast<sockaddr*>(&address), sizeof(address));
}

absl::StatusOr<SocketAddress> SocketAddress::Unix(absl::string_view name) {
  sockaddr_un address{};
  if (name.empty() || name.size() > sizeof(address.sun_path) - 1) {
    return absl::InvalidArgumentError(absl::StrCat("'unix:", name,
                                                   "': the name of a Unix socket has 1 to ",
                                                   sizeof(address.sun_path) - 1, " bytes"));
  }
  address.sun_family = AF_UNIX;
  std::copy(name.begin(), name.end(), address.sun_path + 1);
  return SocketAddress(reinterpret_cast<const sockaddr*>(&address),
                       static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size()));
}

bool SocketAddress::is_loopback() const {
  if (is_unix()) return true;
  if (family() == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(&address) ||
           (IN6_IS_ADDR_V4MAPPED(&address) && address.s6_addr[12] == 127);
  }
  return ntohl(reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr) >> 24 == 127;
}

void SocketAddress::set_port(int port) {
  if (family() == AF_INET6) {
    reinterpret_cast<sockaddr_in6*>(&storage_)->sin6_port = htons(static_cast<uint16_t>(port));
  } else {
    reinterpret_cast<sockaddr_in*>(&storage_)->sin_port = htons(static_cast<uint16_t>(port));
  }
}

int SocketAddress::port() const {
  if (is_unix()) return 0;
  return ntohs(family() == AF_INET6 ? reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_port
                                    : reinterpret_cast<const sockaddr_in*>(&storage_)->sin_port);
}

bool SocketAddress::SameHost(const SocketAddress& other) const {
  if (size_ == 0 || other.size_ == 0 || family() != other.family()) return false;
  if (family() == AF_INET6) {
    return std::memcmp(&reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr,
                       &reinterpret_cast<const sockaddr_in6*>(&other.storage_)->sin6_addr,
                       sizeof(in6_addr)) == 0;
  }
  return reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr.s_addr ==
         reinterpret_cast<const sockaddr_in*>(&other.storage_)->sin_addr.s_addr;
}

std::string SocketAddress::Network() const {
  if (family() == AF_INET6) {
    const in6_addr& address = reinterpret_cast<const sockaddr_in6*>(&storage_)->sin6_addr;
    return {reinterpret_cast<const char*>(&address), sizeof(address) / 2};
  }
  const in_addr& address = reinterpret_cast<const sockaddr_in*>(&storage_)->sin_addr;
  return {reinterpret_cast<const char*>(&address), sizeof(address)};
}

std::string SocketAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (size_ == 0) return "?";
  if (is_unix()) {
    constexpr size_t kBefore = offsetof(sockaddr_un, sun_path) + 1;
    if (size_ <= kBefore) return "unix:?";
    const char* name = reinterpret_cast<const sockaddr_un*>(&storage_)->sun_path + 1;
    return absl::StrCat(kUnixPrefix, absl::string_view(name, size_ - kBefore));
  }
  if (family() == AF_INET) {
    const auto* v4 = reinterpret_cast<const sockaddr_in*>(&storage_);
    inet_ntop(AF_INET, &v4->sin_addr, text, sizeof(text));
    return absl::StrCat(text, ":", ntohs(v4->sin_port));
  }
  const auto* v6 = reinterpret_cast<const sockaddr_in6*>(&storage_);
  inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof(text));
  char name[IF_NAMESIZE] = "";
  bool scoped = v6->sin6_scope_id != 0 && if_indextoname(v6->sin6_scope_id, name) != nullptr;
  return absl::StrCat("[", text, scoped ? "%" : "", name, "]:", ntohs(v6->sin6_port));
}

SocketAddress LocalAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  return getsockname(fd, address, &size) == 0 ? SocketAddress(address, size) : SocketAddress();
}

SocketAddress RemoteAddress(int fd) {
  sockaddr_storage storage{};
  socklen_t size = sizeof(storage);
  auto* address = reinterpret_cast<sockaddr*>(&storage);
  return getpeername(fd, address, &size) == 0 ? SocketAddress(address, size) : SocketAddress();
}

std::string JoinHostPort(absl::string_view host, int port) {
  if (absl::StrContains(host, ":")) return absl::StrCat("[", host, "]:", port);
  return absl::StrCat(host, ":", port);
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
    WEFT_ASSIGN_OR_RETURN(SocketAddress address, SocketAddress::Unix(host_port));
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
    SocketAddress address(entry->ai_addr, entry->ai_addrlen);
    // "::" before "0.0.0.0": it takes both families.
    bool first = host.empty() && address.family() == AF_INET6;
    addresses.insert(first ? addresses.begin() : addresses.end(), address);
  }
  freeaddrinfo(list);
  return addresses;
}

}  // namespace

absl::StatusOr<std::vector<SocketAddress>> ResolveHostPort(absl::string_view host_port) {
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
      return std::vector<SocketAddress>{
          SocketAddress(reinterpret_cast<const sockaddr*>(&ipv4), sizeof(ipv4))};
    }
  }
  return LookUp(host_port, AI_NUMERICHOST);
}

}  // namespace weft
