#include "topology/host/discover.h"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/first_line.h"
#include "base/read_file.h"
#include "base/status.h"
#include "topology/host/hwloc_topology.h"
#include "topology/host/hwloc_xml.h"
#include "topology/host/nccl_machine.h"
#include "topology/host/nccl_xml.h"
#include "topology/host/xml_tree.h"

namespace weft::topology {
namespace {

namespace fs = std::filesystem;

absl::StatusOr<MachineParts> PartsFromHwloc(const char* synthetic) {
  WEFT_ASSIGN_OR_RETURN(
      weft::internal::HwlocTopology topology,
      weft::internal::LoadHwloc(synthetic, weft::internal::HwlocDevices::kImportant));
  char* buffer = nullptr;
  int size = 0;
  if (hwloc_topology_export_xmlbuffer(topology.get(), &buffer, &size, 0) != 0) {
    return ErrnoStatus(errno, "hwloc_topology_export_xmlbuffer");
  }
  // The size counts the zero at the end.
  absl::StatusOr<MachineParts> parts =
      PartsFromHwlocXml(absl::string_view(buffer, static_cast<size_t>(std::max(size - 1, 0))));
  hwloc_free_xmlbuffer(topology.get(), buffer);
  if (!parts.ok()) return Annotate(parts.status(), "hwloc's own XML");
  return parts;
}

int LaneCount(const fs::path& path) {
  int lanes = 0;
  return absl::SimpleAtoi(FirstLine(path), &lanes) && lanes > 0 && lanes <= 32 ? lanes : 0;
}

PciLink ReadLink(const fs::path& folder, absl::string_view which) {
  return {ParseTransferRate(FirstLine(folder / absl::StrCat(which, "_link_speed"))),
          LaneCount(folder / absl::StrCat(which, "_link_width"))};
}

void AddLink(const fs::path& sys, Device& device) {
  std::error_code error;
  const fs::path folder = fs::canonical(sys / "bus/pci/devices" / ToString(*device.address), error);
  if (error) return;
  PciLink current = ReadLink(folder, "current");
  if (current.known()) device.link = current;
  PciLink own = ReadLink(folder, "max");
  // The other end, where there is one: functions of the root complex have none.
  PciLink other = ReadLink(folder.parent_path(), "max");
  if (!own.known()) return;
  device.link_max = own;
  if (other.known()) {
    device.link_max = {std::min(own.gigatransfers, other.gigatransfers),
                       std::min(own.lanes, other.lanes)};
  }
}

// "400 Gb/sec (4X NDR)", "4: ACTIVE", "506b:4b03:00ab:1234".
void AddRdmaPort(const fs::path& sys, NicPort& port) {
  const fs::path device = sys / "class/infiniband" / port.name;
  const fs::path folder = device / "ports" / absl::StrCat(port.number);
  std::vector<std::string> rate = absl::StrSplit(FirstLine(folder / "rate"), ' ');
  double gigabits = 0;
  if (rate.size() >= 2 && rate[1] == "Gb/sec" && absl::SimpleAtod(rate[0], &gigabits) &&
      gigabits > 0) {
    port.bandwidth = Bandwidth::GigabitsPerSecond(gigabits);
  }
  const std::string state = FirstLine(folder / "state");
  if (!state.empty()) port.up = absl::StartsWith(state, "4");
  const std::string digits = absl::StrReplaceAll(FirstLine(device / "node_guid"), {{":", ""}});
  uint64_t guid = 0;
  if (absl::SimpleHexAtoi(digits, &guid)) port.guid = absl::StrFormat("0x%x", guid);
}

void AddInterface(const fs::path& sys, const std::string& name, NicPort& port) {
  const fs::path folder = sys / "class/net" / name;
  int megabits = 0;  // -1: not known, as of virtio
  if (absl::SimpleAtoi(FirstLine(folder / "speed"), &megabits) && megabits > 0) {
    port.bandwidth = Bandwidth::GigabitsPerSecond(megabits / 1e3);
  }
  const std::string state = FirstLine(folder / "operstate");
  if (state == "up" || state == "down") port.up = state == "up";
}

}  // namespace

namespace internal {

void AddFromSys(const std::string& sys, MachineParts& parts) {
  for (Device& device : parts.devices) {
    if (device.address.has_value()) AddLink(sys, device);
    for (NicPort& port : device.ports) {
      port.rdma ? AddRdmaPort(sys, port) : AddInterface(sys, port.name, port);
    }
  }
}

}  // namespace internal

absl::StatusOr<Machine> DiscoverMachine() {
  WEFT_ASSIGN_OR_RETURN(CpuSet allowed, AllowedCpus());
  WEFT_ASSIGN_OR_RETURN(MachineParts parts, PartsFromHwloc(nullptr));
  internal::AddFromSys("/sys", parts);
  std::vector<HostCore> usable;
  for (const HostCore& core : parts.cores) {
    HostCore part{core.package, core.numa_node, {}};
    std::set_intersection(core.cpus.begin(), core.cpus.end(), allowed.begin(), allowed.end(),
                          std::back_inserter(part.cpus));
    if (!part.cpus.empty()) usable.push_back(std::move(part));
  }
  if (usable.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "hwloc shows none of the CPUs that this process may use: ", weft::ToString(allowed)));
  }
  parts.cores = std::move(usable);
  return Machine::Create(std::move(parts));
}

absl::StatusOr<Machine> MachineFromSynthetic(absl::string_view description) {
  WEFT_ASSIGN_OR_RETURN(MachineParts parts, PartsFromHwloc(std::string(description).c_str()));
  parts.name = "synthetic";
  return Machine::Create(std::move(parts));
}

absl::StatusOr<Machine> ReadHwlocFile(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kXmlSizeMax));
  absl::StatusOr<Machine> machine = MachineFromHwlocXml(text);
  if (!machine.ok()) return Annotate(machine.status(), path);
  return machine;
}

absl::StatusOr<Machine> ReadNcclFile(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(path, kXmlSizeMax));
  absl::StatusOr<XmlElement> system = ParseNcclXml(text);
  if (!system.ok()) return Annotate(system.status(), path);
  absl::StatusOr<Machine> machine = MachineFromNccl(*system);
  if (!machine.ok()) return Annotate(machine.status(), path);
  return machine;
}

}  // namespace weft::topology
