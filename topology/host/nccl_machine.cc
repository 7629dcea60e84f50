#include "topology/host/nccl_machine.h"

#include <algorithm>
#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "topology/host/cpu_mask.h"

namespace weft::topology {
namespace {

// As NCCL's strtol(text, NULL, 0); the form was checked by ParseNcclXml.
int64_t Number(const XmlElement& element, absl::string_view attribute, int64_t otherwise) {
  const std::string* text = element.Find(attribute);
  uint64_t hex = 0;
  int64_t decimal = 0;
  if (text == nullptr || text->empty()) return otherwise;
  if (absl::StartsWith(*text, "0x") || absl::StartsWith(*text, "0X")) {
    return absl::SimpleHexAtoi(*text, &hex) ? static_cast<int64_t>(hex) : otherwise;
  }
  return absl::SimpleAtoi(*text, &decimal) ? decimal : otherwise;
}

int Small(const XmlElement& element, absl::string_view attribute, int otherwise, int most) {
  return static_cast<int>(
      std::clamp<int64_t>(Number(element, attribute, otherwise), std::min(otherwise, 0), most));
}

std::string Text(const XmlElement& element, absl::string_view attribute) {
  const std::string* text = element.Find(attribute);
  return text == nullptr ? "" : *text;
}

const XmlElement* FindChild(const XmlElement& element, absl::string_view name) {
  for (const XmlElement& child : element.children) {
    if (child.name == name) return &child;
  }
  return nullptr;
}

// NCCL before 2.30 shifted the extended family by four bits: 0xAF stands for 25 (Zen 3).
int FamilyOf(int familyid) {
  constexpr int kBase = 15;
  const int extended = familyid - kBase;
  return extended > kBase && extended % 16 == 0 ? kBase + extended / 16 : familyid;
}

class Reader {
 public:
  absl::StatusOr<Machine> Read(const XmlElement& system) {
    parts_.name = Text(system, "name");
    for (const XmlElement& cpu : system.children) {
      if (cpu.name == "cpu") WEFT_RETURN_IF_ERROR(ReadCpu(cpu));
    }
    return Machine::Create(std::move(parts_));
  }

 private:
  absl::Status ReadCpu(const XmlElement& cpu) {
    hosts_.insert(Text(cpu, "host_hash"));
    if (hosts_.size() > 1) {
      return XmlError(cpu, absl::StrCat("host_hash ", Text(cpu, "host_hash"),
                                        " is another host than that of the <cpu> before; "
                                        "a file of one host is needed"));
    }
    const int64_t number = Number(cpu, "numaid", -1);
    int numa = -1;
    if (number >= 0) {
      WEFT_ASSIGN_OR_RETURN(numa, AddNumaNode(cpu, static_cast<int>(number)));
    }
    CpuModel& model = parts_.cpu;
    if (model.architecture.empty()) model.architecture = Architecture(Text(cpu, "arch"));
    if (model.vendor.empty()) model.vendor = Text(cpu, "vendor");
    if (model.family == 0) model.family = FamilyOf(Small(cpu, "familyid", 0, 1 << 16));
    if (model.model == 0) model.model = Small(cpu, "modelid", 0, 1 << 16);
    return ReadChildren(cpu, -1, numa);
  }

  static std::string Architecture(const std::string& arch) {  // uname's names
    return arch == "arm64" ? "aarch64" : arch == "ppc64" ? "ppc64le" : arch;
  }

  absl::StatusOr<int> AddNumaNode(const XmlElement& cpu, int number) {
    for (const NumaNode& other : parts_.numa_nodes) {
      if (other.os_index == number) {
        return XmlError(cpu, absl::StrCat("is a second <cpu> with numaid ", number));
      }
    }
    NumaNode node;
    node.os_index = number;
    if (!Text(cpu, "affinity").empty()) {
      node.cpus = ParseCpuMask(Text(cpu, "affinity")).value_or(CpuSet());
    }
    const int index = static_cast<int>(parts_.numa_nodes.size());
    // Cloud providers' files may give several nodes the CPUs of all.
    for (int cpu_number : node.cpus) {
      if (cpus_.insert(cpu_number).second) parts_.cores.push_back({0, index, {cpu_number}});
    }
    parts_.numa_nodes.push_back(std::move(node));
    return index;
  }

  absl::Status ReadChildren(const XmlElement& element, int parent, int numa) {
    for (const XmlElement& child : element.children) {
      if (child.name == "pci") {
        WEFT_RETURN_IF_ERROR(ReadPci(child, parent, numa));
      } else if (child.name == "nic" && element.name == "cpu") {
        Device device;
        device.kind = DeviceKind::kNic;
        device.numa = numa;
        AddPorts(child, device);
        parts_.devices.push_back(std::move(device));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadPci(const XmlElement& pci, int parent, int numa) {
    Device device;
    device.address = ParsePciAddress(Text(pci, "busid"));
    if (!addresses_.insert(*device.address).second) {
      return XmlError(pci, absl::StrCat("busid ", Text(pci, "busid"), " occurs twice"));
    }
    device.parent = parent;
    device.numa = numa;
    auto number = [&](absl::string_view name) {
      return static_cast<uint16_t>(Number(pci, name, 0));
    };
    device.identity = {ClassCode(pci), number("vendor"), number("device"),
                       number("subsystem_vendor"), number("subsystem_device")};
    device.link = {ParseTransferRate(Text(pci, "link_speed")), Small(pci, "link_width", 0, 32)};
    const XmlElement* gpu = FindChild(pci, "gpu");
    const XmlElement* nic = FindChild(pci, "nic");
    if (gpu != nullptr) {
      device.kind = DeviceKind::kGpu;
      ReadGpu(*gpu, device);
    } else if (nic != nullptr) {
      device.kind = DeviceKind::kNic;
      AddPorts(*nic, device);
    } else {
      device.kind =
          FindChild(pci, "pci") != nullptr ? DeviceKind::kSwitch : KindOf(device.identity);
      // NCCL: class 0x03 is a GPU, whoever made it.
      if (device.identity.class_code >> 16 == 0x03) device.kind = DeviceKind::kGpu;
    }
    const bool leaf = device.kind != DeviceKind::kSwitch;
    if (leaf && FindChild(pci, "pci") != nullptr) {
      return XmlError(pci, absl::StrCat("has a <", gpu != nullptr ? "gpu" : "nic",
                                        "> and a <pci>; NCCL passes over the latter"));
    }
    const int index = static_cast<int>(parts_.devices.size());
    parts_.devices.push_back(std::move(device));
    return leaf ? absl::OkStatus() : ReadChildren(pci, index, numa);
  }

  // "0x03" stands for 0x030000.
  static uint32_t ClassCode(const XmlElement& pci) {
    const std::string text = Text(pci, "class");
    uint32_t code = static_cast<uint32_t>(Number(pci, "class", 0)) & 0xffffff;
    for (size_t digits = text.size(); digits >= 4 && digits < 8; digits += 2) code <<= 8;
    return code & 0xffffff;
  }

  static void ReadGpu(const XmlElement& gpu, Device& device) {
    device.index = Small(gpu, "dev", -1, 1 << 16);
    device.compute_capability = Small(gpu, "sm", 0, 1 << 16);
    for (const XmlElement& child : gpu.children) {
      if (child.name == "nvlink") {
        PciIdentity target{static_cast<uint32_t>(Number(child, "tclass", 0x068000)), 0x10de};
        NvLink link{Text(child, "target"), KindOf(target), Small(child, "count", 0, 1024)};
        device.nvlinks.push_back(std::move(link));
      } else if (child.name == "c2c") {  // MB/s of a link
        const double megabytes =
            static_cast<double>(Small(child, "bw", 0, 1 << 24)) * Small(child, "count", 0, 1024);
        device.c2c = Bandwidth::BytesPerSecond(megabytes * 1e6);
      }
    }
  }

  static void AddPorts(const XmlElement& nic, Device& device) {
    for (const XmlElement& net : nic.children) {
      if (net.name != "net") continue;
      NicPort port;
      port.name = Text(net, "name");
      // NCCL's plugins name RDMA devices; interfaces come from its socket transport, without a GUID
      // of their own.
      port.guid = Text(net, "guid");
      port.rdma = Number(net, "gdr", 0) != 0 || absl::StrContains(port.name, "_");
      port.number = Small(net, "port", 1, 255);
      // NCCL: "some NICs define speed = -1".
      const int64_t megabits = std::clamp<int64_t>(Number(net, "speed", 0), 0, 1 << 24);
      port.bandwidth = Bandwidth::GigabitsPerSecond(static_cast<double>(megabits) / 1e3);
      device.ports.push_back(std::move(port));
    }
  }

  MachineParts parts_;
  std::set<std::string> hosts_;
  std::set<int> cpus_;  // of any node
  std::set<PciAddress> addresses_;
};

void SetHex(XmlElement& element, absl::string_view name, uint32_t value, int digits) {
  element.Set(name, absl::StrFormat("0x%0*x", digits, value));
}

class Writer {
 public:
  explicit Writer(const Machine& machine) : machine_(machine) {}

  XmlElement Write() {
    XmlElement system{"system"};
    system.Set("version", "1");
    if (!machine_.name().empty()) system.Set("name", machine_.name());
    for (int numa = -1; numa < static_cast<int>(machine_.numa_nodes().size()); ++numa) {
      XmlElement cpu = Cpu(numa);
      Children(-1, numa, cpu);
      if (!cpu.children.empty()) system.children.push_back(std::move(cpu));
    }
    return system;
  }

 private:
  XmlElement Cpu(int numa) const {
    XmlElement cpu{"cpu"};
    const NumaNode* node = numa < 0 ? nullptr : &machine_.numa_nodes()[static_cast<size_t>(numa)];
    cpu.Set("numaid", absl::StrCat(node == nullptr ? -1 : node->os_index));
    if (node != nullptr) cpu.Set("affinity", CpuMaskText(node->cpus));
    const CpuModel& model = machine_.cpu();
    if (!model.architecture.empty()) cpu.Set("arch", Architecture(model.architecture));
    if (!model.vendor.empty()) cpu.Set("vendor", model.vendor);
    if (model.family != 0) {
      cpu.Set("familyid", absl::StrCat(model.family));
      cpu.Set("modelid", absl::StrCat(model.model));
    }
    return cpu;
  }

  static std::string Architecture(const std::string& name) {
    return name == "aarch64" ? "arm64" : absl::StartsWith(name, "ppc64") ? "ppc64" : name;
  }

  void Children(int parent, int numa, XmlElement& out) const {
    for (size_t i = 0; i < machine_.devices().size(); ++i) {
      const Device& device = machine_.devices()[i];
      if (device.parent != parent || device.numa != numa) continue;
      const bool wanted = device.kind == DeviceKind::kSwitch || device.kind == DeviceKind::kGpu ||
                          device.kind == DeviceKind::kNic;
      if (!wanted) continue;
      if (!device.address.has_value()) {
        out.children.push_back(Nic(device));
        continue;
      }
      XmlElement pci = Pci(device);
      if (device.kind == DeviceKind::kSwitch) {
        Children(static_cast<int>(i), numa, pci);
        if (pci.children.empty()) continue;  // storage alone
      } else {
        pci.children.push_back(device.kind == DeviceKind::kGpu ? Gpu(device) : Nic(device));
      }
      out.children.push_back(std::move(pci));
    }
  }

  static XmlElement Pci(const Device& device) {
    XmlElement pci{"pci"};
    pci.Set("busid", ToString(*device.address));
    const PciIdentity& identity = device.identity;
    if (identity.class_code != 0) SetHex(pci, "class", identity.class_code, 6);
    if (identity.vendor != 0) {
      SetHex(pci, "vendor", identity.vendor, 4);
      SetHex(pci, "device", identity.device, 4);
      SetHex(pci, "subsystem_vendor", identity.subsystem_vendor, 4);
      SetHex(pci, "subsystem_device", identity.subsystem_device, 4);
    }
    // NCCL takes what both ends can, not what an idle GPU's link has fallen back to.
    const PciLink& link = device.link_max.known() ? device.link_max : device.link;
    if (link.known()) {
      pci.Set("link_speed", TransferRateText(link.gigatransfers));
      pci.Set("link_width", absl::StrCat(link.lanes));
    }
    return pci;
  }

  XmlElement Gpu(const Device& device) const {
    XmlElement gpu{"gpu"};
    int number = device.index;
    if (number < 0) (void)absl::SimpleAtoi(device.name.substr(3), &number);  // "gpu7"
    gpu.Set("dev", absl::StrCat(number));
    if (device.compute_capability > 0) gpu.Set("sm", absl::StrCat(device.compute_capability));
    for (const NvLink& link : device.nvlinks) {
      XmlElement nvlink{"nvlink"};
      nvlink.Set("target", link.target);
      nvlink.Set("count", absl::StrCat(link.count));
      nvlink.Set("tclass", link.target_kind == DeviceKind::kGpu        ? "0x030200"
                           : link.target_kind == DeviceKind::kNvSwitch ? "0x068000"
                                                                       : "0x068001");
      gpu.children.push_back(std::move(nvlink));
    }
    if (device.c2c > Bandwidth()) {
      XmlElement c2c{"c2c"};
      c2c.Set("bw", absl::StrFormat("%.0f", device.c2c.bytes_per_second() / 1e6));
      c2c.Set("count", "1");
      gpu.children.push_back(std::move(c2c));
    }
    return gpu;
  }

  static XmlElement Nic(const Device& device) {
    XmlElement nic{"nic"};
    for (const NicPort& port : device.ports) {
      XmlElement net{"net"};
      net.Set("name", port.name);
      const double megabits = port.bandwidth.gigabits_per_second() * 1e3;
      if (megabits > 0) net.Set("speed", absl::StrFormat("%.0f", megabits));
      net.Set("port", absl::StrCat(port.number));
      if (!port.guid.empty()) net.Set("guid", port.guid);
      nic.children.push_back(std::move(net));
    }
    return nic;
  }

  const Machine& machine_;
};

}  // namespace

absl::StatusOr<Machine> MachineFromNccl(const XmlElement& system) { return Reader().Read(system); }

XmlElement NcclFromMachine(const Machine& machine) { return Writer(machine).Write(); }

}  // namespace weft::topology
