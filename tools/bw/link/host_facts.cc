#include "tools/bw/link/host_facts.h"

#include <ifaddrs.h>

#include <cstring>
#include <fstream>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/host_name.h"
#include "net/tcp/socket.h"

namespace weft::link_bw {
namespace {

constexpr size_t kCopyBytes = 1 << 20;  // in and out of the second-level cache, as messages go
constexpr int64_t kCopyNanoseconds = 20'000'000;

double CopySpeed() {
  std::vector<std::byte> from(kCopyBytes, std::byte{1}), to(kCopyBytes);
  const int64_t start = SystemClock::Nanoseconds();
  int64_t now = start, bytes = 0;
  while (now - start < kCopyNanoseconds) {
    from[0] = static_cast<std::byte>(bytes);  // so that no copy is the same as the last
    std::memcpy(to.data(), from.data(), kCopyBytes);
    asm volatile("" : : "r"(to.data()) : "memory");
    bytes += kCopyBytes;
    now = SystemClock::Nanoseconds();
  }
  return static_cast<double>(bytes) / (static_cast<double>(now - start) / 1e9);
}

// The interface that has the address, or "".
std::string InterfaceOf(absl::string_view address) {
  auto wanted = SocketAddress::Parse(address);
  if (!wanted.ok()) return "";
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(all, freeifaddrs);
  for (const ifaddrs* one = all; one != nullptr; one = one->ifa_next) {
    if (one->ifa_addr == nullptr || one->ifa_addr->sa_family != wanted->family()) continue;
    SocketAddress has(one->ifa_addr, wanted->size());
    has.set_port(wanted->port());
    if (has.ToString() == wanted->ToString()) return one->ifa_name;
  }
  return "";
}

}  // namespace

void LearnHost(absl::string_view address, RankUse& use, const std::string& sys) {
  use.host = HostName();
  use.copy = CopySpeed();
  use.device = InterfaceOf(address);
  if (use.device.empty()) return;
  std::ifstream file(absl::StrCat(sys, "/class/net/", use.device, "/speed"));
  double megabits = 0;  // -1: unknown
  if (file >> megabits && megabits > 0) use.link = megabits * 1e6 / 8;
}

}  // namespace weft::link_bw
