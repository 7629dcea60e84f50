#include "net/roce/devices.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"
#include "base/natural_less.h"
#include "base/status.h"
#include "net/roce/adaptive_retransmission.h"
#include "net/roce/interface_statistics.h"
#include "net/roce/tuning.h"

namespace weft::net {
namespace {

namespace fs = std::filesystem;

constexpr absl::string_view kNvidia = "0x15b3";  // PCI vendor
constexpr size_t kFileBytesMax = 4096;           // of one attribute: sysfs gives a page at most

// An attribute without the white space around it; nothing when it cannot be read.
std::optional<std::string> Attribute(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return std::nullopt;
  std::string text(kFileBytesMax, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad()) return std::nullopt;
  text.resize(static_cast<size_t>(file.gcount()));
  return std::string(absl::StripAsciiWhitespace(text));
}

std::string Text(const fs::path& path) { return Attribute(path).value_or(""); }

std::optional<int64_t> Number(const fs::path& path) {
  int64_t value = 0;
  std::optional<std::string> text = Attribute(path);
  if (!text.has_value() || !absl::SimpleAtoi(*text, &value)) return std::nullopt;
  return value;
}

std::vector<std::string> Entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end(), NaturalLess);
  return names;
}

void ReadNumbers(const fs::path& folder, std::map<std::string, int64_t>& numbers) {
  for (const std::string& name : Entries(folder)) {
    if (std::optional<int64_t> value = Number(folder / name)) numbers[name] = *value;
  }
}

// "4: ACTIVE" -> "ACTIVE".
std::string AfterColon(const std::string& text) {
  std::vector<std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  return std::string(absl::StripAsciiWhitespace(parts.back()));
}

std::vector<RdmaGid> ReadGids(const fs::path& port) {
  std::vector<RdmaGid> gids;
  for (const std::string& name : Entries(port / "gids")) {
    RdmaGid gid;
    if (!absl::SimpleAtoi(name, &gid.index)) continue;
    gid.gid = Text(port / "gids" / name);
    if (gid.gid.empty() || gid.unset()) continue;
    gid.type = Text(port / "gid_attrs/types" / name);
    gid.interface = Text(port / "gid_attrs/ndevs" / name);
    gids.push_back(std::move(gid));
  }
  return gids;
}

// What mlx5 says of the traffic class that it forces: "Global tclass=106". Where it forces none, as
// after its start, that line is missing: the file is empty, or has rules for addresses alone
// ("dst_ip=10.1.0.0/16,tclass=96").
std::optional<NicSetting> ReadTrafficClass(const fs::path& path) {
  const std::optional<std::string> text = Attribute(path);
  if (!text.has_value()) return std::nullopt;
  if (text->empty() || absl::StartsWith(*text, "src_ip") || absl::StartsWith(*text, "dst_ip")) {
    return NicSetting{kNoTrafficClass, path.string()};
  }
  const absl::StatusOr<int64_t> forced = ReadNicSetting(path.string());
  if (!forced.ok()) return std::nullopt;
  return NicSetting{*forced, path.string()};
}

RdmaPort ReadPort(const fs::path& device, int number) {
  const fs::path folder = device / "ports" / absl::StrCat(number);
  RdmaPort port;
  port.number = number;
  port.state = AfterColon(Text(folder / "state"));
  port.physical = AfterColon(Text(folder / "phys_state"));
  port.ethernet = Text(folder / "link_layer") == "Ethernet";
  std::vector<std::string> rate =
      absl::StrSplit(Text(folder / "rate"), ' ');  // "400 Gb/sec (4X NDR)"
  if (!absl::SimpleAtod(rate[0], &port.gbps)) port.gbps = 0;
  port.gids = ReadGids(folder);
  ReadNumbers(folder / "counters", port.counters);
  ReadNumbers(folder / "hw_counters", port.counters);
  port.traffic_class = ReadTrafficClass(device / "tc" / absl::StrCat(number) / "traffic_class");
  return port;
}

std::optional<NicSetting> Setting(const fs::path& path) {
  std::optional<int64_t> value = Number(path);
  if (!value.has_value()) return std::nullopt;
  return NicSetting{*value, path.string()};
}

// `debug`: the device's cc_params, for drivers that have no "ecn" folder.
EcnSettings ReadEcn(const fs::path& ecn, const fs::path& debug) {
  EcnSettings settings;
  for (size_t priority = 0; priority < 8; ++priority) {
    const std::string file = absl::StrCat("enable/", priority);
    settings.notifies[priority] = Setting(ecn / "roce_np" / file);
    settings.reacts[priority] = Setting(ecn / "roce_rp" / file);
  }
  for (const NicParameter& parameter : NicParameters()) {
    std::optional<NicSetting> found = Setting(ecn / std::string(parameter.file));
    if (!found.has_value()) found = Setting(debug / std::string(parameter.debug_file));
    if (found.has_value()) settings.parameters[std::string(parameter.name)] = *std::move(found);
  }
  return settings;
}

NetInterface ReadInterface(const fs::path& net, const std::string& name, const fs::path& debug) {
  NetInterface interface;
  interface.name = name;
  interface.mtu = static_cast<int>(Number(net / name / "mtu").value_or(0));
  interface.state = Text(net / name / "operstate");
  interface.ecn = ReadEcn(net / name / "ecn", debug);
  return interface;
}

std::string PciAddressOf(const fs::path& device) {
  std::error_code error;
  const std::string address = fs::canonical(device / "device", error).filename().string();
  return std::count(address.begin(), address.end(), ':') == 2 ? address : "";
}

RdmaDevice ReadDevice(const fs::path& sys, const std::string& name) {
  const fs::path folder = sys / "class/infiniband" / name;
  RdmaDevice device;
  device.name = name;
  device.firmware = Text(folder / "fw_ver");
  device.board = Text(folder / "board_id");
  if (device.board.empty()) device.board = Text(folder / "hca_type");
  device.node_guid = Text(folder / "node_guid");
  device.pci = PciAddressOf(folder);
  device.numa = static_cast<int>(Number(folder / "device/numa_node").value_or(-1));
  device.nvidia = Text(folder / "device/vendor") == kNvidia;
  for (const std::string& number : Entries(folder / "ports")) {
    int port = 0;
    if (absl::SimpleAtoi(number, &port)) device.ports.push_back(ReadPort(folder, port));
  }
  // A soft device has no PCI device that says its interface; its GIDs and its "parent" do.
  std::vector<std::string> interfaces = Entries(folder / "device/net");
  for (const RdmaPort& port : device.ports) {
    for (const RdmaGid& gid : port.gids) interfaces.push_back(gid.interface);
  }
  interfaces.push_back(Text(folder / "parent"));
  std::sort(interfaces.begin(), interfaces.end(), NaturalLess);
  interfaces.erase(std::unique(interfaces.begin(), interfaces.end()), interfaces.end());
  for (const std::string& interface : interfaces) {
    if (!interface.empty()) {
      device.interfaces.push_back(ReadInterface(
          sys / "class/net", interface, sys / "kernel/debug/mlx5" / device.pci / "cc_params"));
    }
  }
  for (const std::string& node : Entries(sys / "class/infiniband_verbs")) {
    if (Text(sys / "class/infiniband_verbs" / node / "ibdev") == name) device.verbs.push_back(node);
  }
  return device;
}

// The kernel tells the pauses of this host's ports; a copy of another host's /sys has none.
void AddPausesOfPorts(std::vector<RdmaDevice>& devices) {
  for (RdmaDevice& device : devices) {
    for (RdmaPort& port : device.ports) {
      const auto gid = std::find_if(port.gids.begin(), port.gids.end(),
                                    [](const RdmaGid& gid) { return !gid.interface.empty(); });
      if (!port.ethernet || gid == port.gids.end()) continue;
      const auto statistics = ReadInterfaceStatistics(gid->interface);
      if (statistics.ok()) AddPauses(*statistics, &port.counters);
    }
  }
}

}  // namespace

bool RdmaGid::unset() const { return gid.find_first_not_of("0:") == std::string::npos; }

bool RdmaGid::link_local() const {
  return absl::StartsWithIgnoreCase(gid, "fe8") || absl::StartsWithIgnoreCase(gid, "fe9") ||
         absl::StartsWithIgnoreCase(gid, "fea") || absl::StartsWithIgnoreCase(gid, "feb");
}

bool RdmaGid::ipv4() const {
  return absl::StartsWithIgnoreCase(gid, "0000:0000:0000:0000:0000:ffff:");
}

std::string ShortGid(const RdmaGid& gid) {
  unsigned high = 0, low = 0;
  if (!gid.ipv4() || std::sscanf(gid.gid.c_str() + 30, "%x:%x", &high, &low) != 2) return gid.gid;
  return absl::StrFormat("%u.%u.%u.%u", high >> 8 & 255, high & 255, low >> 8 & 255, low & 255);
}

bool EcnSettings::switches_known() const {
  auto known = [](const std::optional<NicSetting>& setting) { return setting.has_value(); };
  return std::any_of(notifies.begin(), notifies.end(), known) ||
         std::any_of(reacts.begin(), reacts.end(), known);
}

absl::StatusOr<std::vector<RdmaDevice>> ReadRdmaDevices(const std::string& root) {
  const fs::path sys = root + "/sys";
  const fs::path folder = sys / "class/infiniband";
  std::vector<RdmaDevice> devices;
  std::error_code error;
  if (!fs::exists(folder, error)) return devices;
  const fs::directory_iterator readable(folder, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("read ", folder.string()));
  for (const std::string& name : Entries(folder)) devices.push_back(ReadDevice(sys, name));
  if (root.empty()) AddPausesOfPorts(devices);
  return devices;
}

std::string PciAddress(const std::string& device, const std::string& root) {
  return PciAddressOf(root + "/sys/class/infiniband/" + device);
}

absl::Status ReadFirmware(std::vector<RdmaDevice>& devices) {
  absl::Status first;
  for (RdmaDevice& device : devices) {
    if (!device.nvidia || device.pci.empty()) continue;
    absl::StatusOr<bool> on = ReadAdaptiveRetransmission(device.pci);
    if (on.ok()) {
      device.adaptive_retransmission = NicSetting{*on ? 1 : 0, device.pci, /*in_firmware=*/true};
    } else if (first.ok()) {
      first = Annotate(on.status(), absl::StrCat("adaptive retransmission of ", device.name));
    }
  }
  return first;
}

absl::StatusOr<int64_t> ReadNicSetting(const std::string& path) {
  const std::string text = FirstLine(path);
  int64_t value = 0;
  if (!absl::SimpleAtoi(text.substr(text.rfind('=') + 1), &value)) {  // npos + 1 is 0
    return absl::DataLossError(absl::StrCat(path, " holds '", text, "', no number"));
  }
  return value;
}

std::string PeerMemoryModule(const std::string& root) {
  // As NCCL looks for them: the module, its older out-of-tree forms, AMD's driver.
  constexpr std::pair<const char*, const char*> kSigns[] = {
      {"/sys/module/nvidia_peermem", "nvidia_peermem"},
      {"/sys/module/nv_peer_mem", "nv_peer_mem"},
      {"/sys/kernel/mm/memory_peers/nv_mem", "nv_peer_mem"},
      {"/sys/kernel/mm/memory_peers/nv_mem_nc", "nvidia_peermem"},
      {"/sys/kernel/mm/memory_peers/amdkfd", "amdkfd"},
  };
  for (const auto& [path, name] : kSigns) {
    std::error_code error;
    if (fs::exists(root + path, error)) return name;
  }
  return {};
}

int RoceMtu(int interface_mtu) {
  constexpr int kHeaders = 96;  // GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4
  for (int mtu = 4096; mtu >= 256; mtu /= 2) {
    if (mtu <= interface_mtu - kHeaders) return mtu;
  }
  return 0;
}

}  // namespace weft::net
