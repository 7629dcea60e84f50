#include "plugins/nccl/device.h"

#include <net/if.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/first_line.h"
#include "base/status.h"
#include "net/tcp/source_ports.h"
#include "plugins/nccl/log.h"

namespace weft::nccl {
namespace {

constexpr char kSysfs[] = "/sys/class/net/";

const char* Variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? nullptr : value;
}

absl::Status TakeFamily(Settings& settings) {
  const char* family = Variable("NCCL_SOCKET_FAMILY");
  if (family == nullptr || !settings.IsDefault("tcp.family")) return absl::OkStatus();
  absl::string_view word(family);
  if (word == "AF_INET") return settings.Set("tcp.family", "ipv4", "NCCL_SOCKET_FAMILY");
  if (word == "AF_INET6") return settings.Set("tcp.family", "ipv6", "NCCL_SOCKET_FAMILY");
  return absl::InvalidArgumentError(
      absl::StrCat("NCCL_SOCKET_FAMILY is \"", word, "\"; right are AF_INET and AF_INET6"));
}

// NCCL's sockets of a connection are threads times sockets of each thread; -1 leaves either to us.
absl::Status TakeSockets(Settings& settings, std::string* why) {
  if (!settings.IsDefault("tcp.sockets")) return absl::OkStatus();
  int64_t product = 1;
  bool given = false;
  for (const char* name : {"NCCL_SOCKET_NTHREADS", "NCCL_SOCKET_NSOCKS_PERTHREAD"}) {
    const char* text = Variable(name);
    if (text == nullptr) continue;
    int64_t value = 0;
    if (!absl::SimpleAtoi(text, &value) || value < -1 || value > net::kLinkSocketsMax) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is \"", text,
                                                     "\"; right is a number from 1 to ",
                                                     net::kLinkSocketsMax, ", or -1"));
    }
    if (value <= 0) continue;
    product *= value;
    given = true;
  }
  if (!given) return absl::OkStatus();
  if (product > net::kLinkSocketsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("NCCL_SOCKET_NTHREADS times NCCL_SOCKET_NSOCKS_PERTHREAD is ", product,
                     ", above the limit of ", net::kLinkSocketsMax, " sockets of a connection"));
  }
  absl::StrAppend(why, "sockets from NCCL_SOCKET_NTHREADS * NCCL_SOCKET_NSOCKS_PERTHREAD; ");
  return settings.Set("tcp.sockets", absl::StrCat(product), "NCCL_SOCKET_*");
}

uint64_t GuidOf(const std::string& name) {
  // The hardware address where there is one, else the interface's number, as loopback has, and all
  // in containers that do not see their interfaces in sysfs: NCCL takes two of one guid for one.
  uint64_t guid = 0;
  std::string hex = FirstLine(absl::StrCat(kSysfs, name, "/address"));
  hex.erase(std::remove(hex.begin(), hex.end(), ':'), hex.end());
  if (hex.size() > 16) hex = hex.substr(hex.size() - 16);
  if (absl::SimpleHexAtoi(hex, &guid) && guid != 0) return guid;
  return if_nametoindex(name.c_str());
}

Device DescribeInterface(const net::Interface& interface) {
  Device device;
  device.name = interface.name;
  device.address = interface.address;
  device.guid = GuidOf(interface.name);
  int speed = 0;
  if (absl::SimpleAtoi(FirstLine(absl::StrCat(kSysfs, interface.name, "/speed")), &speed) &&
      speed > 0) {
    device.speed_mbps = speed;
  }
  std::error_code error;
  std::filesystem::path path =
      std::filesystem::canonical(absl::StrCat(kSysfs, interface.name, "/device"), error);
  if (!error && absl::StrContains(path.string(), "/pci")) device.pci_path = path.string();
  return device;
}

}  // namespace

DeviceList::DeviceList(std::vector<Device> devices) {
  for (Device& device : devices) {
    if (!Add(std::move(device)).ok()) break;
  }
  first_size_ = size();
}

absl::Status DeviceList::Check(int device) const {
  const size_t count = size();
  if (device >= 0 && static_cast<size_t>(device) < count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there is no device ", device, "; there are 0 to ", count - 1));
}

absl::StatusOr<int> DeviceList::Add(Device device) {
  const size_t at = size();
  if (at == kMax) return absl::ResourceExhaustedError(absl::StrCat("there are ", kMax, " devices"));
  all_[at] = std::make_unique<const Device>(std::move(device));
  size_.store(at + 1, std::memory_order_release);
  return static_cast<int>(at);
}

void DeviceList::ForgetAdded() {
  for (size_t i = first_size_; i < size(); ++i) forgotten_.push_back(std::move(all_[i]));
  size_.store(first_size_, std::memory_order_release);
}

absl::StatusOr<Settings> PluginSettings(std::string* why) {
  Settings settings(LibrarySettings());
  WEFT_RETURN_IF_ERROR(settings.SetFromEnvironment(/*strict=*/false));
  Settings strict(LibrarySettings());
  // A job's environment may hold names of other programs of ours.
  if (absl::Status unknown = strict.SetFromEnvironment(/*strict=*/true); !unknown.ok()) {
    LogWarning(absl::StrCat(unknown.message(), "; it has no effect"));
  }
  if (settings.Text("transport") == "shm") {
    return absl::InvalidArgumentError(
        "WEFT_TRANSPORT=shm: the plugin has auto, verbs, ucx, multipath and tcp; inside a host "
        "NCCL "
        "uses its own shared memory");
  }
  WEFT_RETURN_IF_ERROR(TakeFamily(settings));
  WEFT_RETURN_IF_ERROR(TakeSockets(settings, why));
  return settings;
}

absl::StatusOr<std::vector<net::Interface>> ChooseInterfaces(std::vector<net::Interface> interfaces,
                                                             absl::string_view filter,
                                                             absl::string_view family,
                                                             absl::string_view origin) {
  std::vector<net::Interface> chosen;
  while (true) {
    auto best = net::ChooseInterface(interfaces, filter, family, origin);
    if (!best.ok() && chosen.empty()) return best.status();
    // Loopback comes last, and beside a real interface only where it is asked for.
    bool named = !filter.empty() && filter[0] != '^';
    if (!best.ok() || (best->loopback && !chosen.empty() && !named)) return chosen;
    std::erase_if(interfaces, [&](const net::Interface& one) { return one.name == best->name; });
    chosen.push_back(*std::move(best));
  }
}

absl::StatusOr<std::vector<Device>> ListInterfaceDevices(const Settings& settings,
                                                         std::string* why) {
  std::string filter = settings.Text("tcp.interface"), origin = "WEFT_TCP_INTERFACE";
  if (const char* nccl = Variable("NCCL_SOCKET_IFNAME"); filter.empty() && nccl != nullptr) {
    filter = nccl, origin = "NCCL_SOCKET_IFNAME";
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<net::Interface> interfaces, net::ListInterfaces());
  WEFT_ASSIGN_OR_RETURN(interfaces, ChooseInterfaces(std::move(interfaces), filter,
                                                     settings.Text("tcp.family"), origin));
  absl::StrAppend(why, filter.empty() ? std::string("all interfaces that are up")
                                      : absl::StrCat("interfaces from ", origin, "=", filter));
  std::vector<Device> devices;
  devices.reserve(interfaces.size());
  for (const net::Interface& interface : interfaces) {
    devices.push_back(DescribeInterface(interface));
  }
  return devices;
}

}  // namespace weft::nccl
