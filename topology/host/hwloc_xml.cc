#include "topology/host/hwloc_xml.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "topology/host/hwloc_cpus.h"
#include "topology/host/xml_tree.h"

namespace weft::topology {
namespace {

using internal::FindInfo;
using internal::NumberOf;

// hwloc_obj_osdev_type_e
enum OsDeviceType { kBlock = 0, kDisplay = 1, kNetwork = 2, kOpenFabrics = 3, kCoprocessor = 5 };

constexpr absl::string_view kNotTheFormat =
    "is not hwloc 2's format; lstopo of hwloc 2 converts: lstopo --input old.xml new.xml "
    "(of hwloc 3: with --export-xml-flags v2)";

bool IsVirtualInterface(absl::string_view name) {
  for (absl::string_view prefix : {"docker", "veth", "virbr", "br-", "ifb", "dummy", "tun", "tap",
                                   "cni", "flannel", "cali", "vxlan"}) {
    if (absl::StartsWith(name, prefix)) return true;
  }
  return name == "lo";
}

// "0302 [10de:2330] [10de:16c1] a1": class, vendor and device, those of the subsystem, revision.
absl::StatusOr<PciIdentity> IdentityOf(const XmlElement& object) {
  const std::string* text = object.Find("pci_type");
  if (text == nullptr) return XmlError(object, "has no pci_type");
  std::vector<absl::string_view> words =
      absl::StrSplit(*text, absl::ByAnyChar(" :[]"), absl::SkipEmpty());
  std::vector<uint32_t> numbers;
  for (absl::string_view word : words) {
    uint32_t number = 0;
    if (word.size() > 4 || !absl::SimpleHexAtoi(word, &number)) break;
    numbers.push_back(number);
  }
  if (numbers.size() != 6 || numbers.size() != words.size()) {
    return XmlError(
        object, absl::StrCat("pci_type '", *text, "' is not as 0302 [10de:2330] [10de:16c1] a1"));
  }
  return PciIdentity{numbers[0] << 8, static_cast<uint16_t>(numbers[1]),
                     static_cast<uint16_t>(numbers[2]), static_cast<uint16_t>(numbers[3]),
                     static_cast<uint16_t>(numbers[4])};
}

// Storage comes with four lanes; what else is here with up to sixteen.
int LanesMax(const PciIdentity& identity) {
  return KindOf(identity) == DeviceKind::kStorage ? 4 : 16;
}

// A PCI bridge above a device, and the switch that was made of it, if one was.
struct Bridge {
  const XmlElement* object;
  int device = -1;
};

class DeviceReader {
 public:
  explicit DeviceReader(MachineParts& parts) : parts_(parts) {}

  absl::Status Read(const XmlElement& machine) { return Walk(machine, -1); }
  // The device that the object with hwloc's gp_index is, or is part of; -1: none.
  int DeviceOf(absl::string_view gp_index) const {
    auto found = by_gp_index_.find(std::string(gp_index));
    return found == by_gp_index_.end() ? -1 : found->second;
  }

 private:
  // `numa`: of the last object above that is about CPUs.
  absl::Status Walk(const XmlElement& element, int numa) {
    if (element.Find("cpuset") != nullptr) {
      WEFT_ASSIGN_OR_RETURN(CpuSet cpus, internal::CpusOf(element));
      numa = internal::NumaNodeOf(parts_, cpus);
    }
    for (const XmlElement& child : element.children) {
      if (child.name != "object") continue;
      const std::string* type = child.Find("type");
      if (type == nullptr) return XmlError(child, "has no type");
      if (*type == "Bridge") {
        WEFT_RETURN_IF_ERROR(WalkBridge(child, numa));
      } else if (*type == "PCIDev") {
        WEFT_RETURN_IF_ERROR(AddDevice(child, numa));
      } else if (*type == "OSDev") {
        WEFT_RETURN_IF_ERROR(AddVirtual(child, numa));
      } else {
        WEFT_RETURN_IF_ERROR(Walk(child, numa));
      }
    }
    return absl::OkStatus();
  }

  absl::Status WalkBridge(const XmlElement& object, int numa) {
    const std::string* type = object.Find("bridge_type");
    if (type == nullptr || (*type != "0-1" && *type != "1-1")) {
      return XmlError(object, "bridge_type is neither 0-1 (host to PCI) nor 1-1 (PCI to PCI)");
    }
    const bool pci = *type == "1-1";
    if (pci) bridges_.push_back({&object});
    for (const XmlElement& child : object.children) {
      if (child.name != "object") continue;
      const std::string* inner = child.Find("type");
      if (inner != nullptr && *inner == "Bridge") {
        WEFT_RETURN_IF_ERROR(WalkBridge(child, numa));
      } else if (inner != nullptr && *inner == "PCIDev") {
        WEFT_RETURN_IF_ERROR(AddDevice(child, numa));
      }
    }
    if (pci) bridges_.pop_back();
    return absl::OkStatus();
  }

  // What hangs below the first `depth` bridges hangs on the last but one, as NCCL takes two steps
  // up /sys: over a switch's downstream port to its upstream port, or over a root port to the CPU.
  absl::StatusOr<int> SwitchAbove(size_t depth, int numa) {
    if (depth < 2) return -1;
    Bridge& bridge = bridges_[depth - 2];
    if (bridge.device < 0) {
      WEFT_ASSIGN_OR_RETURN(int parent, SwitchAbove(depth - 2, numa));
      Device device;
      device.kind = DeviceKind::kSwitch;
      WEFT_RETURN_IF_ERROR(FillPci(*bridge.object, device));
      device.parent = parent;
      device.numa = numa;
      bridges_[depth - 2].device = Append(std::move(device), *bridge.object);
    }
    return bridges_[depth - 2].device;
  }

  absl::Status FillPci(const XmlElement& object, Device& device) {
    const std::string* address = object.Find("pci_busid");
    if (address == nullptr) return XmlError(object, "has no pci_busid");
    device.address = ParsePciAddress(*address);
    if (!device.address.has_value()) {
      return XmlError(
          object, absl::StrCat("pci_busid '", *address, "' is no PCI address, as 0000:3b:00.0"));
    }
    if (!addresses_.insert(*device.address).second) {
      return XmlError(object, absl::StrCat("pci_busid ", *address, " occurs twice"));
    }
    WEFT_ASSIGN_OR_RETURN(device.identity, IdentityOf(object));
    const std::string* speed = object.Find("pci_link_speed");
    double gigabytes = 0;
    if (speed != nullptr) {
      if (!absl::SimpleAtod(*speed, &gigabytes) || !(gigabytes >= 0 && gigabytes < 1e4)) {
        return XmlError(object, absl::StrCat("pci_link_speed '", *speed, "' is no GB/s"));
      }
      device.link =
          LinkOfBandwidth(Bandwidth::BytesPerSecond(gigabytes * 1e9), LanesMax(device.identity));
    }
    return absl::OkStatus();
  }

  int Append(Device device, const XmlElement& object) {
    const int index = static_cast<int>(parts_.devices.size());
    if (const std::string* gp = object.Find("gp_index")) by_gp_index_[*gp] = index;
    parts_.devices.push_back(std::move(device));
    return index;
  }

  absl::Status AddDevice(const XmlElement& object, int numa) {
    Device device;
    WEFT_RETURN_IF_ERROR(FillPci(object, device));
    device.kind = KindOf(device.identity);
    if (device.kind == DeviceKind::kSwitch)
      device.kind = DeviceKind::kOther;  // a bridge to nothing
    device.numa = numa;
    if (const std::string* model = FindInfo(object, "PCIDevice")) device.model = *model;
    for (const XmlElement& child : object.children) {
      const std::string* type = child.Find("type");
      if (child.name != "object" || type == nullptr || *type != "OSDev") continue;
      WEFT_RETURN_IF_ERROR(AddOsDevice(child, device));
    }
    FinishNic(device);
    if (device.kind == DeviceKind::kOther) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(device.parent, SwitchAbove(bridges_.size(), numa));
    const int index = Append(std::move(device), object);
    for (const XmlElement& child : object.children) {
      if (const std::string* gp = child.Find("gp_index")) by_gp_index_[*gp] = index;
    }
    return absl::OkStatus();
  }

  absl::Status AddOsDevice(const XmlElement& object, Device& device) {
    const std::string* name = object.Find("name");
    if (name == nullptr) return XmlError(object, "has no name");
    WEFT_ASSIGN_OR_RETURN(int64_t type, NumberOf(object, "osdev_type"));
    const std::string* subtype = object.Find("subtype");
    const bool vendor_tool = subtype != nullptr && (*subtype == "CUDA" || *subtype == "NVML" ||
                                                    *subtype == "RSMI" || *subtype == "LevelZero");
    if (type == kNetwork) {
      device.kind = DeviceKind::kNic;
      if (!IsVirtualInterface(*name)) device.interfaces.push_back(*name);
    } else if (type == kOpenFabrics) {
      device.kind = DeviceKind::kNic;
      AddPorts(object, *name, device);
    } else if (vendor_tool || type == kCoprocessor) {
      device.kind = DeviceKind::kGpu;
      if (const std::string* model = FindInfo(object, "GPUModel")) device.model = *model;
      int number = -1;
      if (absl::StartsWith(*name, "nvml") && absl::SimpleAtoi(name->substr(4), &number)) {
        device.index = std::clamp(number, -1, 1 << 16);
      }
    }
    return absl::OkStatus();
  }

  // "Port1State" = "4" is active; hwloc tells of every port that there is.
  static void AddPorts(const XmlElement& object, const std::string& name, Device& device) {
    const std::string* guid = FindInfo(object, "NodeGUID");
    bool any = false;
    for (int number = 1; number <= 4; ++number) {
      const std::string* state = FindInfo(object, absl::StrCat("Port", number, "State"));
      if (state == nullptr) continue;
      any = true;
      NicPort port{name, true, number};
      port.up = *state == "4";
      if (guid != nullptr) port.guid = GuidText(*guid);
      device.ports.push_back(std::move(port));
    }
    if (!any) device.ports.push_back({name, true, 1});
  }

  // "506b:4b03:00ab:1234" as NCCL has it: 0x506b4b0300ab1234.
  static std::string GuidText(absl::string_view guid) {
    std::string digits = "0x";
    for (absl::string_view word : absl::StrSplit(guid, ':')) absl::StrAppend(&digits, word);
    uint64_t value = 0;
    return absl::SimpleHexAtoi(digits, &value) ? absl::StrFormat("0x%x", value) : "";
  }

  // Without RDMA a NIC's interfaces are its ports.
  static void FinishNic(Device& device) {
    if (device.kind != DeviceKind::kNic || !device.ports.empty()) return;
    for (size_t i = 0; i < device.interfaces.size(); ++i) {
      device.ports.push_back({device.interfaces[i], false, static_cast<int>(i) + 1});
    }
  }

  absl::Status AddVirtual(const XmlElement& object, int numa) {
    Device device;
    WEFT_RETURN_IF_ERROR(AddOsDevice(object, device));
    FinishNic(device);
    if (device.kind != DeviceKind::kNic || device.ports.empty()) return absl::OkStatus();
    device.numa = numa;
    Append(std::move(device), object);
    return absl::OkStatus();
  }

  MachineParts& parts_;
  std::vector<Bridge> bridges_;  // from the root port down to where Walk stands
  std::set<PciAddress> addresses_;
  std::map<std::string, int> by_gp_index_;
};

// NVLinks, where hwloc was built with NVML: a matrix of MB/s between GPUs and NVSwitches.
class NvLinkReader {
 public:
  NvLinkReader(const DeviceReader& devices, MachineParts& parts)
      : devices_(devices), parts_(parts) {}

  absl::Status Read(const XmlElement& topology) {
    for (const XmlElement& element : topology.children) {
      const std::string* name = element.Find("name");
      if (!absl::StartsWith(element.name, "distances2") || name == nullptr ||
          *name != "NVLinkBandwidth") {
        continue;
      }
      WEFT_RETURN_IF_ERROR(ReadMatrix(element));
    }
    return absl::OkStatus();
  }

 private:
  static std::vector<std::string> Words(const XmlElement& element, absl::string_view name) {
    std::vector<std::string> words;
    for (const XmlElement& child : element.children) {
      if (child.name != name) continue;
      std::vector<std::string> more =
          absl::StrSplit(child.text, absl::ByAnyChar(" \n\t"), absl::SkipEmpty());
      words.insert(words.end(), more.begin(), more.end());
    }
    return words;
  }

  absl::Status ReadMatrix(const XmlElement& element) {
    std::vector<int> devices;
    for (absl::string_view word : Words(element, "indexes")) {
      devices.push_back(devices_.DeviceOf(word.substr(word.rfind(':') + 1)));  // "OSDev:33", "33"
    }
    std::vector<std::string> values = Words(element, "u64values");
    const size_t n = devices.size();
    if (n > 1024 || values.size() != n * n) {
      return XmlError(element, absl::StrCat("has ", values.size(), " values for ", n, " devices"));
    }
    for (size_t i = 0; i < n * n; ++i) {
      uint64_t megabytes = 0;
      if (!absl::SimpleAtoi(values[i], &megabytes)) {
        return XmlError(element, absl::StrCat("value '", values[i], "' is no number"));
      }
      AddLinks(devices[i / n], devices[i % n], megabytes);
    }
    return absl::OkStatus();
  }

  void AddLinks(int from, int to, uint64_t megabytes) {
    constexpr uint64_t kOfOneLink = 25000;  // NVLink 2 to 4: 25 GB/s a link and direction
    if (from < 0 || to < 0 || from == to || megabytes == 0) return;
    Device& gpu = parts_.devices[static_cast<size_t>(from)];
    const Device& target = parts_.devices[static_cast<size_t>(to)];
    if (gpu.kind != DeviceKind::kGpu || !target.address.has_value()) return;
    const uint64_t count = std::clamp<uint64_t>((megabytes + kOfOneLink / 2) / kOfOneLink, 1, 64);
    gpu.nvlinks.push_back({ToString(*target.address), target.kind, static_cast<int>(count)});
  }

  const DeviceReader& devices_;
  MachineParts& parts_;
};

}  // namespace

absl::StatusOr<MachineParts> PartsFromHwlocXml(absl::string_view xml) {
  WEFT_ASSIGN_OR_RETURN(XmlElement topology, ParseXml(xml));
  const std::string* version = topology.Find("version");
  if (topology.name == "system") return XmlError(topology, "is NCCL's format, not hwloc's");
  if (topology.name != "topology" || version == nullptr || !absl::StartsWith(*version, "2.")) {
    return XmlError(topology, kNotTheFormat);
  }
  const XmlElement* machine = nullptr;
  for (const XmlElement& child : topology.children) {
    const std::string* type = child.Find("type");
    if (child.name != "object" || type == nullptr || *type != "Machine") continue;
    if (machine != nullptr) return XmlError(child, "is a second Machine");
    machine = &child;
  }
  if (machine == nullptr) return XmlError(topology, "has no object of type Machine");
  MachineParts parts;
  if (const std::string* name = FindInfo(*machine, "HostName")) parts.name = *name;
  if (const std::string* name = FindInfo(*machine, "Architecture")) parts.cpu.architecture = *name;
  WEFT_RETURN_IF_ERROR(internal::ReadCpus(*machine, parts));
  DeviceReader devices(parts);
  WEFT_RETURN_IF_ERROR(devices.Read(*machine));
  WEFT_RETURN_IF_ERROR(NvLinkReader(devices, parts).Read(topology));
  return parts;
}

absl::StatusOr<Machine> MachineFromHwlocXml(absl::string_view xml) {
  WEFT_ASSIGN_OR_RETURN(MachineParts parts, PartsFromHwlocXml(xml));
  return Machine::Create(std::move(parts));
}

}  // namespace weft::topology
