#include "topology/order/nccl_files.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "topology/cost/collective_flows.h"
#include "topology/host/nccl_xml.h"

namespace weft::topology {
namespace {

constexpr const char* kNvSwitch = "0000:f0:00.0";
constexpr double kNvLinkBytes = 25e9;  // a second, one link one way (NVLink 3 and 4)

absl::Status Check(const NcclHost& host) {
  if (host.gpus < 1 || host.gpus > 16 || host.nics < 1 || host.nics > 16) {
    return absl::InvalidArgumentError(absl::StrCat("a host of ", host.gpus, " GPUs and ", host.nics,
                                                   " NICs: NCCL's files are made for 1 to 16"));
  }
  return absl::OkStatus();
}

XmlElement Element(const std::string& name,
                   std::vector<std::pair<std::string, std::string>> attributes) {
  XmlElement element;
  element.name = name;
  element.attributes = std::move(attributes);
  return element;
}

XmlElement Pci(int bus, int slot, const char* device_class) {
  return Element("pci", {{"busid", absl::StrFormat("0000:%02x:%02x.0", bus, slot)},
                         {"class", device_class},
                         {"link_speed", "32.0 GT/s PCIe"},
                         {"link_width", "16"}});
}

XmlElement GpuOf(const NcclHost& host, int gpu, int bus) {
  int links =
      std::max(1, static_cast<int>(std::lround(host.nvlink.bytes_per_second() / kNvLinkBytes)));
  XmlElement pci = Pci(bus, 1 + gpu, "0x030200");
  XmlElement element = Element("gpu", {{"dev", absl::StrCat(gpu)},
                                       {"sm", links > 12 ? "90" : "80"},
                                       {"rank", absl::StrCat(gpu)},
                                       {"gdr", "1"}});
  if (host.gpus > 1) {
    element.children.push_back(Element(
        "nvlink", {{"target", kNvSwitch}, {"count", absl::StrCat(links)}, {"tclass", "0x068000"}}));
  }
  pci.children.push_back(std::move(element));
  return pci;
}

XmlElement NicOf(const NcclHost& host, int nic, int bus) {
  XmlElement pci = Pci(bus, 1 + nic, "0x020700");
  XmlElement element = Element("nic", {});
  element.children.push_back(
      Element("net", {{"name", absl::StrCat(host.nic_prefix, nic)},
                      {"dev", absl::StrCat(nic)},
                      {"speed", absl::StrCat(std::llround(host.nic.bytes_per_second() * 8 / 1e6))},
                      {"port", "1"},
                      {"guid", absl::StrFormat("0x%x", 0x5000 + nic)},
                      {"maxconn", "131072"},
                      {"gdr", "1"}}));
  pci.children.push_back(std::move(element));
  return pci;
}

// The GPUs beside a NIC, at least one.
int FirstGpuOf(const NcclHost& host, int nic) {
  for (int gpu = 0; gpu < host.gpus; ++gpu) {
    NicsOfGpu nics = NicsOf(gpu, host.gpus, host.nics);
    if (nic >= nics.first && nic < nics.first + nics.count) return gpu;
  }
  return nic % host.gpus;
}

std::string GraphElement(const NcclHost& host, int id, int pattern) {
  std::string text = absl::StrFormat(
      "  <graph id=\"%d\" pattern=\"%d\" crossnic=\"0\" nchannels=\"%d\" speedintra=\"%g\" "
      "speedinter=\"%g\" latencyinter=\"0\" typeintra=\"%s\" typeinter=\"PIX\" "
      "samechannels=\"0\">\n",
      id, pattern, host.nics, std::floor(host.nvlink.bytes_per_second() / 1e9 / host.nics),
      std::floor(host.nic.bytes_per_second() / 1e9), host.gpus > 1 ? "NVL" : "LOC");
  for (int nic = 0; nic < host.nics; ++nic) {
    absl::StrAppendFormat(&text, "    <channel>\n      <net dev=\"%x\"/>\n", nic);
    int first = FirstGpuOf(host, nic);
    for (int i = 0; i < host.gpus; ++i) {
      absl::StrAppendFormat(&text, "      <gpu dev=\"%x\"/>\n", (first + i) % host.gpus);
    }
    absl::StrAppendFormat(&text, "      <net dev=\"%x\"/>\n    </channel>\n", nic);
  }
  return text + "  </graph>\n";
}

}  // namespace

absl::StatusOr<std::string> NcclTopologyText(const NcclHost& host) {
  WEFT_RETURN_IF_ERROR(Check(host));
  XmlElement system = Element("system", {{"version", "1"}});
  int cpus = host.gpus > 1 && host.gpus % 2 == 0 && host.nics % 2 == 0 ? 2 : 1;
  int switches = std::min(host.gpus, host.nics);
  while (host.gpus % switches != 0 || host.nics % switches != 0 || switches % cpus != 0) {
    if (--switches < cpus) break;
  }
  switches = std::max(switches, cpus);
  for (int cpu = 0; cpu < cpus; ++cpu) {
    XmlElement numa = Element("cpu", {{"numaid", absl::StrCat(cpu)}, {"arch", "x86_64"}});
    for (int s = cpu * switches / cpus; s < (cpu + 1) * switches / cpus; ++s) {
      int bus = 0x10 + 4 * s;
      XmlElement bridge = Pci(bus, 0, "0x060400");
      for (int gpu = s * host.gpus / switches; gpu < (s + 1) * host.gpus / switches; ++gpu) {
        bridge.children.push_back(GpuOf(host, gpu, bus + 1));
      }
      for (int nic = s * host.nics / switches; nic < (s + 1) * host.nics / switches; ++nic) {
        bridge.children.push_back(NicOf(host, nic, bus + 2));
      }
      numa.children.push_back(std::move(bridge));
    }
    system.children.push_back(std::move(numa));
  }
  return NcclXmlText(system);
}

absl::StatusOr<std::string> NcclGraphText(const NcclHost& host) {
  WEFT_RETURN_IF_ERROR(Check(host));
  // Ids and patterns of src/graph/search.cc: ring 0 with pattern 4, tree 1 with pattern 1.
  return absl::StrCat("<graphs version=\"1\">\n", GraphElement(host, 0, 4),
                      GraphElement(host, 1, 1), "</graphs>\n");
}

absl::StatusOr<std::vector<NcclChannel>> ParseNcclGraph(absl::string_view text) {
  WEFT_ASSIGN_OR_RETURN(XmlElement root, ParseXml(text));
  if (root.name != "graphs") return XmlError(root, "is no <graphs>");
  auto number = [](const XmlElement& element, const char* name, int base) -> absl::StatusOr<int> {
    const std::string* value = element.Find(name);
    int out = 0;
    bool is_number = value != nullptr && (base == 16 ? absl::SimpleHexAtoi(*value, &out)
                                                     : absl::SimpleAtoi(*value, &out));
    if (!is_number) return XmlError(element, absl::StrCat("has no number '", name, "'"));
    return out;
  };
  std::vector<NcclChannel> channels;
  for (const XmlElement& graph : root.children) {
    WEFT_ASSIGN_OR_RETURN(int id, number(graph, "id", 10));
    WEFT_ASSIGN_OR_RETURN(int count, number(graph, "nchannels", 10));
    if (count != static_cast<int>(graph.children.size())) {
      return XmlError(graph, absl::StrCat("has ", graph.children.size(), " channels, not ", count));
    }
    for (const XmlElement& channel : graph.children) {
      NcclChannel one;
      one.graph = id;
      for (const XmlElement& step : channel.children) {
        WEFT_ASSIGN_OR_RETURN(int device, number(step, "dev", 16));
        if (step.name == "gpu") {
          one.gpus.push_back(device);
        } else {
          (one.gpus.empty() ? one.net_in : one.net_out) = device;
        }
      }
      channels.push_back(std::move(one));
    }
  }
  return channels;
}

}  // namespace weft::topology
