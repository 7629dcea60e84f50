#include "tools/doctor/report.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "tools/doctor/checks.h"

namespace weft::doctor {
namespace {

using net::NetInterface;
using net::RdmaDevice;
using net::RdmaGid;
using net::RdmaPort;
using nlohmann::ordered_json;

// The traffic class that the device forces on the port; nothing where it forces none, or where the
// kernel does not show it.
std::optional<int64_t> ForcedTrafficClass(const RdmaPort& port) {
  const bool forces =
      port.traffic_class.has_value() && port.traffic_class->value != net::kNoTrafficClass;
  return forces ? std::optional(port.traffic_class->value) : std::nullopt;
}

std::string PortText(const RdmaDevice& device, const RdmaPort& port) {
  std::string text = absl::StrFormat("    port %d: %s%s, %g Gb/s %s", port.number,
                                     port.state.empty() ? "?" : port.state,
                                     port.physical.empty() ? "" : absl::StrCat(" ", port.physical),
                                     port.gbps, port.ethernet ? "Ethernet" : "InfiniBand");
  const std::optional<int64_t> forced = ForcedTrafficClass(port);
  if (forced.has_value()) absl::StrAppend(&text, ", traffic class ", *forced);
  absl::StrAppend(&text, "\n");
  if (!port.ethernet) return text;
  const RdmaGid* chosen = ChosenGid(port);
  for (const RdmaGid& gid : port.gids) {
    absl::StrAppend(&text, absl::StrFormat("    %s GID %2d: %s, %s%s%s\n",
                                           &gid == chosen ? "*" : " ", gid.index, ShortGid(gid),
                                           gid.type.empty() ? "type not readable" : gid.type,
                                           gid.interface.empty() ? "" : ", ", gid.interface));
  }
  for (const NetInterface& interface : device.interfaces) {
    absl::StrAppend(
        &text, absl::StrFormat("      %s: %s, MTU %d (RoCE %d)\n", interface.name, interface.state,
                               interface.mtu, net::RoceMtu(interface.mtu)));
  }
  return text;
}

std::string LimitText(const std::optional<Bytes>& limit) {
  return limit.has_value() ? ToString(*limit) : "unlimited";
}

ordered_json Switch(const std::optional<net::NicSetting>& setting) {
  return setting.has_value() ? ordered_json(setting->value != 0) : ordered_json();
}

ordered_json EcnJson(const net::EcnSettings& ecn) {
  if (!ecn.known()) return nullptr;
  ordered_json json;
  for (size_t priority = 0; priority < 8; ++priority) {
    json["notifies"].push_back(Switch(ecn.notifies[priority]));
    json["reacts"].push_back(Switch(ecn.reacts[priority]));
  }
  json["parameters"] = ordered_json::object();
  for (const auto& [name, setting] : ecn.parameters) json["parameters"][name] = setting.value;
  return json;
}

ordered_json PortJson(const RdmaPort& port) {
  ordered_json json = {{"number", port.number},
                       {"state", port.state},
                       {"physical_state", port.physical},
                       {"link_layer", port.ethernet ? "Ethernet" : "InfiniBand"},
                       {"gbps", port.gbps}};
  auto gid_json = [](const RdmaGid& gid) {
    return ordered_json{
        {"index", gid.index}, {"gid", gid.gid}, {"type", gid.type}, {"interface", gid.interface}};
  };
  json["gids"] = ordered_json::array();
  for (const RdmaGid& gid : port.gids) json["gids"].push_back(gid_json(gid));
  const RdmaGid* chosen = ChosenGid(port);
  json["gid"] = chosen != nullptr ? gid_json(*chosen) : ordered_json();
  const std::optional<int64_t> forced = ForcedTrafficClass(port);
  json["traffic_class"] = forced.has_value() ? ordered_json(*forced) : ordered_json();
  json["counters"] = port.counters;
  return json;
}

ordered_json DeviceJson(const RdmaDevice& device) {
  ordered_json json = {{"name", device.name},         {"board", device.board},
                       {"firmware", device.firmware}, {"node_guid", device.node_guid},
                       {"pci", device.pci},           {"numa", device.numa}};
  json["adaptive_retransmission"] = Switch(device.adaptive_retransmission);
  json["ports"] = ordered_json::array();
  for (const RdmaPort& port : device.ports) json["ports"].push_back(PortJson(port));
  json["interfaces"] = ordered_json::array();
  for (const NetInterface& interface : device.interfaces) {
    json["interfaces"].push_back({{"name", interface.name},
                                  {"state", interface.state},
                                  {"mtu", interface.mtu},
                                  {"roce_mtu", net::RoceMtu(interface.mtu)},
                                  {"ecn", EcnJson(interface.ecn)}});
  }
  return json;
}

}  // namespace

std::string NodeText(const Node& node) {
  std::string text = absl::StrCat(node.host, ", Linux ", node.kernel, "\n");
  if (node.machine.has_value()) absl::StrAppend(&text, "  ", node.machine->Describe(), "\n");
  for (const RdmaDevice& device : node.devices) {
    absl::StrAppend(&text, "  ", device.name, ": ", device.board);
    if (!device.firmware.empty()) absl::StrAppend(&text, ", firmware ", device.firmware);
    if (!device.pci.empty()) absl::StrAppend(&text, ", PCI ", device.pci);
    if (device.numa >= 0) absl::StrAppend(&text, ", NUMA node ", device.numa);
    absl::StrAppend(&text, "\n");
    for (const RdmaPort& port : device.ports) absl::StrAppend(&text, PortText(device, port));
  }
  absl::StrAppend(
      &text, "  limits: locked memory ", LimitText(node.limits.locked_memory), ", open files ",
      node.limits.open_files.has_value() ? absl::StrCat(*node.limits.open_files) : "unlimited",
      ", /dev/shm ",
      node.limits.shared_memory.has_value() ? ToString(*node.limits.shared_memory) : "none", "\n");
  for (const LibraryFound& library : node.libraries) {
    absl::StrAppend(
        &text, "  ", library.name, ": ", library.path.empty() ? "not found" : library.path,
        library.version.empty() ? "" : absl::StrCat(", version ", library.version), "\n");
  }
  return text;
}

ordered_json NodeJson(const Node& node) {
  ordered_json json = {{"host", node.host}, {"kernel", node.kernel}};
  json["devices"] = ordered_json::array();
  for (const RdmaDevice& device : node.devices) json["devices"].push_back(DeviceJson(device));
  auto bytes = [](const std::optional<Bytes>& value) {
    return value.has_value() ? ordered_json(value->count()) : ordered_json();
  };
  json["limits"] = {
      {"locked_memory_bytes", bytes(node.limits.locked_memory)},
      {"open_files",
       node.limits.open_files.has_value() ? ordered_json(*node.limits.open_files) : ordered_json()},
      {"cgroup_memory_bytes", bytes(node.limits.cgroup_memory)},
      {"shared_memory_bytes", bytes(node.limits.shared_memory)},
      {"shared_memory_free_bytes", node.limits.shared_memory_free.count()}};
  json["gpu_direct"] = {{"driver", node.gpu_direct.driver},
                        {"peer_memory_module", node.gpu_direct.peer_memory},
                        {"open_driver", node.gpu_direct.open_driver}};
  json["libraries"] = ordered_json::array();
  for (const LibraryFound& library : node.libraries) {
    json["libraries"].push_back({{"name", library.name},
                                 {"path", library.path},
                                 {"version", library.version},
                                 {"error", library.error}});
  }
  json["plugins"] = ordered_json::array();
  for (const NetPlugin& plugin : node.plugins) {
    json["plugins"].push_back({{"name", plugin.name},
                               {"path", plugin.path},
                               {"tables", plugin.tables},
                               {"error", plugin.error}});
  }
  json["environment"] = node.environment;
  return json;
}

std::string FindingsText(const Findings& findings) {
  std::string text;
  std::array<int, 3> counts{};
  for (Severity severity : {Severity::kError, Severity::kWarning, Severity::kNote}) {
    for (const Finding& finding : findings) {
      if (finding.severity != severity) continue;
      ++counts[static_cast<size_t>(severity)];
      absl::StrAppend(&text, absl::StrFormat("%-7s  %s: %s (%s)\n", ToString(severity),
                                             finding.subject, finding.sentence, finding.check));
      if (!finding.advice.empty()) absl::StrAppend(&text, "         -> ", finding.advice, "\n");
    }
  }
  auto number = [&](Severity severity, const char* word) {
    const int n = counts[static_cast<size_t>(severity)];
    return absl::StrCat(n, " ", word, n == 1 ? "" : "s");
  };
  return absl::StrCat(text, number(Severity::kError, "error"), ", ",
                      number(Severity::kWarning, "warning"), ", ", number(Severity::kNote, "note"),
                      "\n");
}

void AddFindings(const Findings& findings, ordered_json& json) {
  json["findings"] = ordered_json::array();
  for (const Finding& finding : findings) {
    json["findings"].push_back({{"severity", ToString(finding.severity)},
                                {"check", finding.check},
                                {"subject", finding.subject},
                                {"sentence", finding.sentence},
                                {"advice", finding.advice}});
  }
  for (auto [severity, name] :
       {std::pair{Severity::kError, "errors"}, std::pair{Severity::kWarning, "warnings"},
        std::pair{Severity::kNote, "notes"}}) {
    json[name] = std::count_if(
        findings.begin(), findings.end(),
        [which = severity](const Finding& finding) { return finding.severity == which; });
  }
}

std::string PairsText(const std::vector<Direction>& directions,
                      const std::vector<std::string>& names) {
  std::string text = absl::StrFormat("%-20s", "Gb/s from \\ to");
  for (size_t to = 0; to < names.size(); ++to) absl::StrAppend(&text, absl::StrFormat("%9d", to));
  std::vector<double> latencies;
  for (size_t from = 0; from < names.size(); ++from) {
    absl::StrAppend(&text, absl::StrFormat("\n%3d %-16s", from, names[from]));
    for (size_t to = 0; to < names.size(); ++to) {
      auto found = std::find_if(directions.begin(), directions.end(), [&](const Direction& one) {
        return one.from == static_cast<int>(from) && one.to == static_cast<int>(to);
      });
      if (found == directions.end()) {
        absl::StrAppend(&text, absl::StrFormat("%9s", "-"));
      } else if (!found->error.empty()) {
        absl::StrAppend(&text, absl::StrFormat("%9s", "FAILS"));
      } else {
        absl::StrAppend(&text, absl::StrFormat("%9.2f", found->gbps));
        latencies.push_back(found->latency_us);
      }
    }
  }
  std::sort(latencies.begin(), latencies.end());
  if (!latencies.empty()) {
    absl::StrAppend(
        &text,
        absl::StrFormat("\nhalf round trip of 8 bytes: %.1f to %.1f us, median %.1f",
                        latencies.front(), latencies.back(), latencies[latencies.size() / 2]));
  }
  return text + "\n";
}

ordered_json PairsJson(const std::vector<Direction>& directions) {
  ordered_json json = ordered_json::array();
  for (const Direction& direction : directions) {
    json.push_back({{"from", direction.from},
                    {"to", direction.to},
                    {"error", direction.error},
                    {"latency_us", direction.latency_us},
                    {"gbps", direction.gbps}});
  }
  return json;
}

const char* ToString(Severity severity) {
  switch (severity) {
    case Severity::kNote:
      return "note";
    case Severity::kWarning:
      return "warning";
    case Severity::kError:
      return "error";
  }
  return "?";
}

std::string NicsText(const std::vector<net::NicChange>& changes) {
  if (changes.empty()) return "no NIC tells what its congestion control is set to\n";
  std::string text, heading;
  for (const net::NicChange& change : changes) {
    const std::string of =
        absl::StrCat(change.device, change.interface.empty() ? "" : " ", change.interface);
    if (of != heading) absl::StrAppend(&text, heading.empty() ? "" : "\n", of, "\n");
    heading = of;
    const std::string wanted = change.differs() ? absl::StrCat("-> ", *change.wanted) : "";
    absl::StrAppend(&text, absl::StrFormat("  %-30s %10d %-12s %-7s %s\n", change.name,
                                           change.now.value, wanted, change.unit, change.meaning));
  }
  return text;
}

ordered_json NicsJson(const std::vector<net::NicChange>& changes) {
  ordered_json json = ordered_json::array();
  for (const net::NicChange& change : changes) {
    json.push_back(
        {{"device", change.device},
         {"interface", change.interface},
         {"name", change.name},
         {"unit", change.unit},
         {"value", change.now.value},
         {"wanted", change.wanted.has_value() ? ordered_json(*change.wanted) : ordered_json()},
         {"path", change.now.path}});
  }
  return json;
}

int ExitStatus(const Findings& findings, bool strict) {
  const Severity least = strict ? Severity::kWarning : Severity::kError;
  const bool ill = std::any_of(findings.begin(), findings.end(),
                               [&](const Finding& finding) { return finding.severity >= least; });
  return ill ? EXIT_FAILURE : EXIT_SUCCESS;
}

}  // namespace weft::doctor
