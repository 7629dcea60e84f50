#include "topology/host/render.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft::topology {
namespace {

using Json = nlohmann::ordered_json;

std::string Joined(const std::vector<std::string>& parts) { return absl::StrJoin(parts, ", "); }

std::string NumaName(const Machine& machine, int numa) {
  return numa < 0 ? "?" : absl::StrCat(machine.numa_nodes()[static_cast<size_t>(numa)].os_index);
}

// "8 cores, 16 CPUs (0-15), L3 32 MiB, 256 GiB".
std::string NodeText(const Machine& machine, const NumaNode& node) {
  std::vector<std::string> parts;
  if (node.cpus.empty()) {
    parts.emplace_back("no CPU");
  } else {
    if (machine.host().has_value()) {
      absl::StatusOr<Host> usable = machine.host()->Within(node.cpus);
      const size_t cores = usable.ok() ? usable->cores().size() : 0;
      const size_t cpus = usable.ok() ? usable->cpus().size() : 0;
      parts.push_back(absl::StrCat(cores, cores == 1 ? " core, " : " cores, ", cpus, " of"));
    }
    parts.push_back(absl::StrCat(node.cpus.size(), node.cpus.size() == 1 ? " CPU" : " CPUs", " (",
                                 weft::ToString(node.cpus), ")"));
  }
  std::string text = absl::StrJoin(parts, " ");
  int caches = 0;
  Bytes size;
  for (const Cache& cache : machine.caches()) {
    if (cache.level != 3 || cache.cpus.empty() ||
        !std::includes(node.cpus.begin(), node.cpus.end(), cache.cpus.begin(), cache.cpus.end())) {
      continue;
    }
    ++caches;
    size = cache.size;
  }
  if (caches > 0) {
    absl::StrAppend(&text, ", L3 ", caches > 1 ? absl::StrCat(caches, " x ") : "", ToString(size));
  }
  if (node.memory.has_value()) {
    absl::StrAppend(&text, ", ", *node.memory == Bytes(0) ? "no memory" : ToString(*node.memory));
  }
  return text;
}

std::string DeviceText(const Device& device) {
  std::vector<std::string> parts;
  for (const NicPort& port : device.ports) {
    parts.push_back(absl::StrCat(port.name, port.number > 1 ? absl::StrCat("/", port.number) : "",
                                 port.bandwidth > Bandwidth() ? " " : "",
                                 port.bandwidth > Bandwidth() ? ToString(port.bandwidth) : "",
                                 port.up == false ? " down" : ""));
  }
  for (const std::string& interface : device.interfaces) {
    if (device.ports.empty() || device.ports[0].rdma) parts.push_back(interface);
  }
  std::string text = absl::StrFormat("%-9s %-12s", device.name,
                                     device.address.has_value() ? ToString(*device.address) : "-");
  const std::string what = device.model.empty() ? VendorText(device.identity) : device.model;
  if (!what.empty()) absl::StrAppend(&text, "  ", what);
  if (!parts.empty()) absl::StrAppend(&text, "  ", Joined(parts));
  if (device.link.known()) absl::StrAppend(&text, "  PCI ", ToString(device.link));
  int links = 0;
  for (const NvLink& link : device.nvlinks) links += link.count;
  if (links > 0) absl::StrAppend(&text, "  ", links, " NVLinks");
  return text;
}

void AppendDevices(const Machine& machine, int parent, int numa, int depth, std::string& out) {
  for (size_t i = 0; i < machine.devices().size(); ++i) {
    const Device& device = machine.devices()[i];
    if (device.parent != parent || (parent < 0 && device.numa != numa)) continue;
    absl::StrAppend(&out, std::string(static_cast<size_t>(depth) * 2, ' '), DeviceText(device),
                    "\n");
    AppendDevices(machine, static_cast<int>(i), numa, depth + 1, out);
  }
}

std::string ShortName(const Device& device) {  // "GPU0", as nvidia-smi writes it
  std::string name = device.name;
  std::transform(name.begin(), name.end(), name.begin(), [](char c) {
    return c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  });
  return name;
}

std::vector<int> GpusAndNics(const Machine& machine) {
  std::vector<int> all = machine.gpus();
  all.insert(all.end(), machine.nics().begin(), machine.nics().end());
  return all;
}

Json Names(const Machine& machine, const std::vector<int>& devices) {
  Json names = Json::array();
  for (int device : devices) names.push_back(machine.device(device).name);
  return names;
}

Json LinkJson(const PciLink& link) {
  if (!link.known()) return nullptr;
  return {{"gigatransfers_per_second", link.gigatransfers},
          {"lanes", link.lanes},
          {"gigabytes_per_second", link.bandwidth().bytes_per_second() / 1e9}};
}

Json DeviceJson(const Machine& machine, const Device& device) {
  Json json = {{"name", device.name}, {"kind", ToString(device.kind)}};
  json["address"] = device.address.has_value() ? Json(ToString(*device.address)) : Json(nullptr);
  json["parent"] = device.parent < 0 ? Json(nullptr) : Json(machine.device(device.parent).name);
  json["numa_node"] = device.numa < 0
                          ? Json(nullptr)
                          : Json(machine.numa_nodes()[static_cast<size_t>(device.numa)].os_index);
  json["pci_id"] = absl::StrFormat("%04x:%04x", device.identity.vendor, device.identity.device);
  json["link"] = LinkJson(device.link);
  json["link_max"] = LinkJson(device.link_max);
  if (!device.model.empty()) json["model"] = device.model;
  if (device.kind == DeviceKind::kNic) {
    json["interfaces"] = device.interfaces;
    json["ports"] = Json::array();
    for (const NicPort& port : device.ports) {
      const double gigabits = port.bandwidth.gigabits_per_second();
      json["ports"].push_back(
          {{"name", port.name},
           {"rdma", port.rdma},
           {"number", port.number},
           {"gigabits_per_second", gigabits > 0 ? Json(gigabits) : Json(nullptr)},
           {"guid", port.guid},
           {"up", port.up.has_value() ? Json(*port.up) : Json(nullptr)}});
    }
  }
  for (const NvLink& link : device.nvlinks) {
    json["nvlinks"].push_back({{"target", link.target}, {"count", link.count}});
  }
  return json;
}

Json DistancesJson(const MachineReport& report) {
  Json rows = Json::object();
  const std::vector<int> all = GpusAndNics(report.machine);
  for (int a : all) {
    Json row = Json::object();
    for (int b : all) {
      const Distance distance = report.distances.Between(a, b);
      row[report.machine.device(b).name] = {
          {"type", ToString(distance.type)},
          {"gigabytes_per_second", distance.bandwidth.bytes_per_second() / 1e9},
          {"known", distance.known}};
    }
    rows[report.machine.device(a).name] = std::move(row);
  }
  return rows;
}

}  // namespace

std::string TreeText(const Machine& machine) {
  std::string out = absl::StrCat(machine.name().empty() ? "host" : machine.name(), ": ",
                                 machine.Describe(), "\n");
  const CpuModel& cpu = machine.cpu();
  if (!cpu.name.empty() || !cpu.vendor.empty()) {
    absl::StrAppend(&out, "  ", cpu.name.empty() ? cpu.vendor : cpu.name, "\n");
  }
  int package = -1;
  for (size_t i = 0; i < machine.numa_nodes().size(); ++i) {
    const NumaNode& node = machine.numa_nodes()[i];
    if (node.package != package && node.package >= 0) {
      package = node.package;
      absl::StrAppend(&out, "  package ", machine.packages()[static_cast<size_t>(package)].os_index,
                      "\n");
    }
    absl::StrAppend(&out, "    NUMA node ", node.os_index, ": ", NodeText(machine, node), "\n");
    AppendDevices(machine, -1, static_cast<int>(i), 3, out);
  }
  std::string nowhere;
  AppendDevices(machine, -1, -1, 3, nowhere);
  if (!nowhere.empty()) absl::StrAppend(&out, "    NUMA node not told\n", nowhere);
  return out;
}

std::string MatrixText(const Machine& machine, const Distances& distances) {
  const std::vector<int> all = GpusAndNics(machine);
  if (all.empty()) return "";
  std::string out = absl::StrFormat("%-7s", "");
  for (int b : all) absl::StrAppendFormat(&out, "%-7s", ShortName(machine.device(b)));
  absl::StrAppend(&out, "NUMA  CPUs\n");
  std::set<PathType> met;
  bool guess = false;
  for (int a : all) {
    absl::StrAppendFormat(&out, "%-7s", ShortName(machine.device(a)));
    for (int b : all) {
      const Distance distance = distances.Between(a, b);
      if (a != b) {
        met.insert(distance.type);
        guess = guess || !distance.known;
      }
      absl::StrAppendFormat(
          &out, "%-7s",
          a == b ? " X" : absl::StrCat(ToString(distance.type), distance.known ? "" : "?"));
    }
    absl::StrAppendFormat(&out, "%-5s %s\n", NumaName(machine, machine.device(a).numa),
                          weft::ToString(CpusNear(machine, distances, a)));
  }
  absl::StrAppend(&out, "\n");
  for (PathType type : met) {
    absl::StrAppendFormat(&out, "  %s   %s\n", ToString(type), Meaning(type));
  }
  if (guess) absl::StrAppend(&out, "  ?     a guess: the host does not tell where the device is\n");
  for (int nic : machine.nics()) {
    const Device& device = machine.device(nic);
    if (device.ports.empty()) continue;
    absl::StrAppendFormat(&out, "  %s  %s\n", ShortName(device), device.ports[0].name);
  }
  return out;
}

std::string NicsText(const Machine& machine, const std::vector<GpuNics>& nics) {
  std::string out;
  for (const GpuNics& one : nics) {
    std::vector<std::string> labels;
    for (int nic : one.assigned) labels.push_back(Label(machine.device(nic)));
    absl::StrAppendFormat(&out, "%-6s -> %-18s %s\n", machine.device(one.gpu).name,
                          labels.empty() ? "-" : Joined(labels), one.reason);
  }
  return out;
}

std::string BindingsText(const Machine& machine, const std::vector<ProcessBinding>& bindings) {
  if (bindings.empty()) return "";
  std::string out = absl::StrFormat("%-8s %-6s %-12s %-20s %-20s %s\n", "process", "GPU", "NICs",
                                    "CPUs", "progress CPUs", "why");
  for (const ProcessBinding& one : bindings) {
    std::vector<std::string> names;
    for (int nic : one.nics) names.push_back(machine.device(nic).name);
    absl::StrAppendFormat(&out, "%-8d %-6s %-12s %-20s %-20s %s\n", one.process,
                          one.gpu < 0 ? "-" : machine.device(one.gpu).name,
                          names.empty() ? "-" : absl::StrJoin(names, ","), weft::ToString(one.cpus),
                          weft::ToString(one.progress), one.reason);
  }
  return out;
}

std::string FindingsText(const std::vector<Finding>& findings) {
  if (findings.empty()) return "nothing odd was found\n";
  std::string out;
  for (const Finding& finding : findings) {
    absl::StrAppend(&out, "warning: ", finding.subject, " ", finding.sentence, " [",
                    ToString(finding.kind), "]\n");
  }
  return out;
}

Json ReportJson(const MachineReport& report) {
  const Machine& machine = report.machine;
  Json json = {{"name", machine.name()}, {"summary", machine.Describe()}};
  json["cpu"] = {{"architecture", machine.cpu().architecture},
                 {"vendor", machine.cpu().vendor},
                 {"name", machine.cpu().name},
                 {"family", machine.cpu().family},
                 {"model", machine.cpu().model}};
  json["numa_nodes"] = Json::array();
  for (const NumaNode& node : machine.numa_nodes()) {
    json["numa_nodes"].push_back(
        {{"number", node.os_index},
         {"package", node.package < 0 ? Json(nullptr) : Json(node.package)},
         {"cpus", weft::ToString(node.cpus)},
         {"memory_bytes", node.memory.has_value() ? Json(node.memory->count()) : Json(nullptr)}});
  }
  json["devices"] = Json::array();
  for (const Device& device : machine.devices()) {
    json["devices"].push_back(DeviceJson(machine, device));
  }
  json["distances"] = DistancesJson(report);
  json["gpus"] = Json::array();
  for (const GpuNics& one : report.nics) {
    json["gpus"].push_back({{"gpu", machine.device(one.gpu).name},
                            {"nearest_nics", Names(machine, one.nearest)},
                            {"assigned_nics", Names(machine, one.assigned)},
                            {"reason", one.reason}});
  }
  json["bindings"] = Json::array();
  for (const ProcessBinding& one : report.bindings) {
    json["bindings"].push_back(
        {{"process", one.process},
         {"gpu", one.gpu < 0 ? Json(nullptr) : Json(machine.device(one.gpu).name)},
         {"nics", Names(machine, one.nics)},
         {"cpus", weft::ToString(one.cpus)},
         {"progress_cpus", weft::ToString(one.progress)},
         {"reason", one.reason}});
  }
  json["findings"] = Json::array();
  for (const Finding& finding : report.findings) {
    json["findings"].push_back({{"kind", ToString(finding.kind)},
                                {"subject", finding.subject},
                                {"sentence", finding.sentence}});
  }
  return json;
}

}  // namespace weft::topology
