#include "net/tcp/interface.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <tuple>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/status.h"

namespace weft::net {
namespace {

// Interfaces that other hosts cannot reach, as their makers name them.
constexpr absl::string_view kVirtualPrefixes[] = {"docker", "br-",  "virbr", "veth",
                                                  "cni",    "cali", "podman"};

bool IsVirtual(absl::string_view name) {
  for (absl::string_view prefix : kVirtualPrefixes) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  return false;
}

// `=` before the first word, or before each, asks for whole names.
struct Filter {
  bool exclude = false;
  std::vector<std::pair<std::string, bool>> words;  // name, exact
};

Filter ParseFilter(absl::string_view text) {
  Filter filter;
  filter.exclude = absl::ConsumePrefix(&text, "^");
  bool all_exact = absl::ConsumePrefix(&text, "=");
  for (absl::string_view word : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    bool exact = absl::ConsumePrefix(&word, "=") || all_exact;
    filter.words.emplace_back(std::string(word), exact);
  }
  return filter;
}

const sockaddr_in6& AsV6(const SocketAddress& address) {
  return *reinterpret_cast<const sockaddr_in6*>(address.get());
}
bool IsLinkLocal(const SocketAddress& address) {
  return address.family() == AF_INET6 && IN6_IS_ADDR_LINKLOCAL(&AsV6(address).sin6_addr);
}

bool IsOfThisHost(SocketAddress address) {
  address.set_port(0);
  const absl::StatusOr<std::vector<Interface>> interfaces = ListInterfaces();
  return interfaces.ok() &&
         std::any_of(interfaces->begin(), interfaces->end(), [&](const Interface& one) {
           return one.address.ToString() == address.ToString();
         });
}

// The place of the first word that fits the name; -1: none does.
int Match(const Filter& filter, absl::string_view name) {
  for (size_t i = 0; i < filter.words.size(); ++i) {
    const auto& [word, exact] = filter.words[i];
    if (exact ? name == word : absl::StartsWith(name, word)) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

absl::StatusOr<std::vector<Interface>> ListInterfaces() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return ErrnoStatus(errno, "list the network interfaces");
  std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> holder(list, freeifaddrs);
  std::vector<Interface> out;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    Interface one;
    one.name = entry->ifa_name;
    one.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    one.address = SocketAddress(entry->ifa_addr,
                                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    one.link_local = IsLinkLocal(one.address);
    out.push_back(std::move(one));
  }
  return out;
}

absl::StatusOr<Interface> ChooseInterface(const std::vector<Interface>& interfaces,
                                          absl::string_view filter_text, absl::string_view family,
                                          absl::string_view origin) {
  Filter filter = ParseFilter(filter_text);
  const Interface* best = nullptr;
  std::tuple<int, bool, bool, bool, bool> best_score;
  std::vector<std::string> names;
  for (const Interface& one : interfaces) {
    bool v6 = one.address.family() == AF_INET6;
    names.push_back(absl::StrCat(one.name, v6 ? " (ipv6)" : " (ipv4)"));
    if ((family == "ipv4" && v6) || (family == "ipv6" && !v6)) continue;
    int place = Match(filter, one.name);
    bool named = !filter.exclude && place >= 0;
    if (filter.exclude ? place >= 0 : !filter.words.empty() && place < 0) continue;
    std::tuple<int, bool, bool, bool, bool> score{filter.exclude ? 0 : place, one.loopback,
                                                  !named && IsVirtual(one.name), one.link_local,
                                                  v6};
    if (best == nullptr || score < best_score) best = &one, best_score = score;
  }
  if (best != nullptr) return *best;
  return absl::NotFoundError(
      absl::StrCat("no interface fits \"", filter_text, "\" (", origin, ") with family ", family,
                   "; up on this host: ", names.empty() ? "none" : absl::StrJoin(names, ", ")));
}

absl::StatusOr<Interface> ChooseInterface(const Settings& settings) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Interface> interfaces, ListInterfaces());
  std::string filter = settings.Text("tcp.interface");
  std::string origin = "tcp.interface";
  if (const char* nccl = std::getenv("NCCL_SOCKET_IFNAME"); filter.empty() && nccl != nullptr) {
    filter = nccl, origin = "NCCL_SOCKET_IFNAME";
  }
  if (const char* gloo = std::getenv("GLOO_SOCKET_IFNAME");
      filter.empty() && gloo != nullptr && *gloo != '\0') {
    filter = absl::StrCat("=", gloo), origin = "GLOO_SOCKET_IFNAME";
  }
  return ChooseInterface(interfaces, filter, settings.Text("tcp.family"), origin);
}

absl::StatusOr<SocketAddress> ParsePeer(absl::string_view text, const SocketAddress& own) {
  absl::StatusOr<SocketAddress> said = SocketAddress::Parse(text);
  if (!IsLinkLocal(own) || (said.ok() && (!IsLinkLocal(*said) || IsOfThisHost(*said)))) return said;
  std::string bare(text);
  const size_t zone = bare.find('%'), end = bare.rfind(']');
  if (zone < end && end != std::string::npos) bare.erase(zone, end - zone);
  said = SocketAddress::Parse(bare);
  if (!said.ok() || !IsLinkLocal(*said)) return said;
  sockaddr_in6 address = AsV6(*said);
  address.sin6_scope_id = AsV6(own).sin6_scope_id;
  return SocketAddress(reinterpret_cast<const sockaddr*>(&address), sizeof(address));
}

}  // namespace weft::net
