// RDMA ports as devices: names, and what sysfs knows of the cards that they are on.
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"
#include "base/natural_less.h"
#include "base/status.h"
#include "net/verbs/choice.h"
#include "plugins/nccl/device.h"

namespace weft::nccl {
namespace {

namespace fs = std::filesystem;

constexpr char kSysfs[] = "/sys/class/infiniband/";

// Identity of the card, so that its ports and functions are known to share it. Without sysfs (in
// some containers) a value that differs from device to device.
uint64_t GuidOf(const std::string& device) {
  for (const char* file : {"sys_image_guid", "node_guid"}) {
    std::string hex = FirstLine(fs::path(kSysfs) / device / file);
    hex.erase(std::remove(hex.begin(), hex.end(), ':'), hex.end());
    uint64_t guid = 0;
    if (absl::SimpleHexAtoi(hex, &guid) && guid != 0) return guid;
  }
  uint64_t hash = 14695981039346656037U;  // FNV-1a
  for (char c : device) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211U;
  return hash;
}

// Functions of one card as one device, as NCCL's own transport has them: function 0's path.
std::string PciPathOf(const std::string& device) {
  std::error_code error;
  std::string path = fs::canonical(fs::path(kSysfs) / device / "device", error).string();
  if (error || !absl::StrContains(path, "/pci")) return {};
  std::string first = path;
  first.back() = '0';
  return fs::exists(first, error) ? first : path;
}

struct PortOnCard {
  std::string device;
  int port = 1;
};

// NCCL's device has the port's name only where a card has several: "mlx5_0", "mlx5_0:2".
Device DescribePort(const PortOnCard& port, bool alone) {
  Device out;
  out.rail = absl::StrCat(port.device, ":", port.port);
  out.name = alone ? port.device : out.rail;
  out.pci_path = PciPathOf(port.device);
  std::error_code ignored;
  out.software = out.pci_path.empty() && fs::exists(fs::path(kSysfs) / port.device, ignored);
  out.guid = GuidOf(port.device);
  out.port = port.port;
  // The function, as ports of one card's two functions are both the first of theirs.
  std::error_code error;
  std::string path = fs::canonical(fs::path(kSysfs) / port.device / "device", error).string();
  if (!error && !out.pci_path.empty()) out.port += path.back() - '0';
  return out;
}

std::vector<Device> Describe(const std::vector<PortOnCard>& ports) {
  std::map<std::string, int> count;
  for (const PortOnCard& port : ports) ++count[port.device];
  std::vector<Device> out;
  out.reserve(ports.size());
  for (const PortOnCard& port : ports) out.push_back(DescribePort(port, count[port.device] == 1));
  return out;
}

std::vector<std::string> Entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end(), NaturalLess);
  return names;
}

std::vector<Device> ActivePorts(absl::string_view filter) {
  std::vector<PortOnCard> ports;
  std::vector<double> gbps;
  for (const std::string& device : Entries(kSysfs)) {
    for (const std::string& name : Entries(fs::path(kSysfs) / device / "ports")) {
      const fs::path folder = fs::path(kSysfs) / device / "ports" / name;
      int port = 0;
      double rate = 0;
      if (!absl::SimpleAtoi(name, &port) ||
          !absl::StrContains(FirstLine(folder / "state"), "ACTIVE") ||
          !net::DeviceIsWanted(filter, device, port)) {
        continue;
      }
      const std::vector<std::string> words = absl::StrSplit(FirstLine(folder / "rate"), ' ');
      gbps.push_back(absl::SimpleAtod(words[0], &rate) ? rate : 0);
      ports.push_back({device, port});
    }
  }
  std::vector<Device> out = Describe(ports);
  for (size_t i = 0; i < out.size(); ++i) {
    if (gbps[i] > 0) out[i].speed_mbps = static_cast<int>(gbps[i] * 1000);
  }
  return out;
}

const char* PointersText(int pointers) {
  const bool by_address = (pointers & abi::kPointerCuda) != 0;
  if ((pointers & abi::kPointerDmaBuf) != 0)
    return by_address ? "by DMA-BUF or address" : "by DMA-BUF";
  return by_address ? "by address" : "through the host's";
}

}  // namespace

std::vector<Device> PortDevices(const std::vector<net::VerbsPort>& ports) {
  std::vector<PortOnCard> names;
  names.reserve(ports.size());
  for (const net::VerbsPort& port : ports) names.push_back({port.device, port.port});
  std::vector<Device> out = Describe(names);
  for (size_t i = 0; i < out.size(); ++i) {
    if (ports[i].gbps > 0) out[i].speed_mbps = static_cast<int>(ports[i].gbps * 1000);
    // Two queue pairs a connection and end, mostly.
    out[i].connections_max = std::clamp(ports[i].queue_pairs / 2, 1, 65536);
    if (ports[i].peer_memory) out[i].pointers |= abi::kPointerCuda;
    if (ports[i].dma_bufs) out[i].pointers |= abi::kPointerDmaBuf;
    out[i].description =
        absl::StrCat(ports[i].description, ", GPU memory ", PointersText(out[i].pointers));
  }
  return out;
}

absl::StatusOr<std::vector<Device>> ListUcxDevices(const Settings& settings, std::string* why) {
  std::string given = settings.Text("ucx.net_devices");
  const char* ucx = std::getenv("UCX_NET_DEVICES");
  const char* origin = given.empty() ? "UCX_NET_DEVICES" : "ucx.net_devices";
  if (given.empty() && ucx != nullptr && absl::string_view(ucx) != "all") given = ucx;
  if (given.empty()) {
    const char* filter = std::getenv("NCCL_IB_HCA");
    std::vector<Device> ports = ActivePorts(filter == nullptr ? "" : filter);
    if (ports.empty()) return ListInterfaceDevices(settings, why);
    absl::StrAppend(why, "active RDMA ports",
                    filter == nullptr ? "" : absl::StrCat(" from NCCL_IB_HCA=", filter));
    return ports;
  }
  absl::StrAppend(why, "devices from ", origin, "=", given);
  const std::vector<Device> known = ActivePorts("");
  std::vector<Device> out;
  for (absl::string_view name : absl::StrSplit(given, ',', absl::SkipEmpty())) {
    auto found = std::find_if(known.begin(), known.end(),
                              [&](const Device& one) { return one.rail == name; });
    if (found != known.end()) {
      out.push_back(*found);
    } else {
      Device device;
      device.name = device.rail = std::string(name);
      device.guid = GuidOf(device.name);
      out.push_back(std::move(device));
    }
  }
  return out;
}

Device MergedDevice(const std::vector<Device>& parts) {
  Device out = parts[0];
  std::vector<std::string> names, rails, descriptions;
  out.speed_mbps = 0;
  for (const Device& one : parts) {
    names.push_back(one.name);
    rails.push_back(one.rail);
    descriptions.push_back(one.description);
    out.speed_mbps += one.speed_mbps;
    out.connections_max = std::min(out.connections_max, one.connections_max);
    out.pointers &= one.pointers;
  }
  out.name = absl::StrJoin(names, "+");
  out.rail = absl::StrJoin(rails, ",");
  out.description = absl::StrJoin(descriptions, "; ");
  return out;
}

}  // namespace weft::nccl
