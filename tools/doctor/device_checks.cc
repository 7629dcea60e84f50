#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "net/roce/counters.h"
#include "tools/doctor/checks.h"

namespace weft::doctor {
namespace {

using net::EcnSettings;
using net::NetInterface;
using net::RdmaDevice;
using net::RdmaGid;
using net::RdmaPort;

std::string PortName(const RdmaDevice& device, const RdmaPort& port) {
  return absl::StrCat(device.name, " port ", port.number);
}

void CheckNodes(const Node& node, const RdmaDevice& device, Findings& findings) {
  for (const std::string& verbs : device.verbs) {
    if (std::count(node.device_nodes.begin(), node.device_nodes.end(), verbs) > 0) continue;
    findings.push_back({Severity::kError, "device-node", device.name,
                        absl::StrCat("cannot be opened: /dev/infiniband/", verbs,
                                     node.device_folder ? " is missing or not allowed"
                                                        : ": there is no /dev/infiniband"),
                        "in a container: start it with --device=/dev/infiniband; else look at the "
                        "permissions that udev gives"});
  }
}

void CheckPort(const RdmaDevice& device, const RdmaPort& port, Findings& findings) {
  if (port.active()) return;
  std::string physical;
  if (!port.physical.empty()) physical = absl::StrCat(" (", port.physical, ")");
  findings.push_back(
      {Severity::kError, "port-down", PortName(device, port),
       absl::StrCat("is ", port.state.empty() ? "in an unknown state" : port.state, physical),
       port.physical == "LinkUp" ? "the cable is fine: bring its network interface up"
                                 : "look at cable, transceiver and switch port"});
}

void CheckGids(const RdmaDevice& device, const RdmaPort& port, Findings& findings) {
  if (!port.ethernet || !port.active()) return;
  const bool typed = std::any_of(port.gids.begin(), port.gids.end(),
                                 [](const RdmaGid& gid) { return !gid.type.empty(); });
  if (!port.gids.empty() && !typed) {
    findings.push_back({Severity::kWarning, "gid-types", PortName(device, port),
                        "has GIDs whose types cannot be read here",
                        "the container sees another network namespace's addresses: set "
                        "NCCL_IB_GID_INDEX, or share the host's network"});
    return;
  }
  const RdmaGid* chosen = ChosenGid(port);
  if (chosen == nullptr) {
    findings.push_back({Severity::kError, "gid-missing", PortName(device, port),
                        "has no routable RoCE v2 GID",
                        "give its network interface an IPv4 address; check that RoCE v2 is on "
                        "(cma_roce_mode)"});
  } else if (!chosen->ipv4()) {
    findings.push_back({Severity::kWarning, "gid-ipv6", PortName(device, port),
                        absl::StrCat("has no IPv4 GID; index ", chosen->index, " is IPv6"),
                        "NCCL prefers IPv4 unless NCCL_IB_ADDR_FAMILY=AF_INET6 is set on all "
                        "hosts"});
  }
}

void CheckMtu(const RdmaDevice& device, const NetInterface& interface, Findings& findings) {
  if (interface.mtu == 0) return;
  const int mtu = net::RoceMtu(interface.mtu);
  if (mtu >= 4096) return;
  const std::string subject = absl::StrCat(interface.name, " (", device.name, ")");
  if (mtu == 0) {
    findings.push_back({Severity::kError, "mtu", subject,
                        absl::StrCat("has an MTU of ", interface.mtu, ": too small for RoCE"),
                        "set it to 9000 here and on every switch"});
    return;
  }
  findings.push_back({Severity::kWarning, "mtu", subject,
                      absl::StrFormat("has an MTU of %d: RoCE packets carry %d bytes, not 4096",
                                      interface.mtu, mtu),
                      "set it to 9000 (at least 4192) here and on every switch"});
}

// Devices that differ from the others in what should be equal on a host.
template <typename Value>
void CheckEqual(const std::vector<std::pair<std::string, Value>>& values, const std::string& check,
                const std::string& what, const std::string& advice, Findings& findings) {
  std::set<Value> kinds;
  std::vector<std::string> words;
  for (const auto& [name, value] : values) {
    kinds.insert(value);
    words.push_back(absl::StrCat(name, " ", value));
  }
  if (kinds.size() < 2) return;
  findings.push_back({Severity::kWarning, check, what,
                      absl::StrCat("differ: ", absl::StrJoin(words, ", ")), advice});
}

bool IsOn(const std::optional<net::NicSetting>& setting) {
  return setting.has_value() && setting->value != 0;
}

std::string EcnText(const EcnSettings& ecn) {
  std::string text;
  auto mark = [](const std::optional<net::NicSetting>& setting) {
    return !setting.has_value() ? "?" : IsOn(setting) ? "1" : "0";
  };
  for (size_t priority = 0; priority < 8; ++priority) {
    absl::StrAppend(&text, priority > 0 ? " " : "", mark(ecn.notifies[priority]),
                    mark(ecn.reacts[priority]));
  }
  return text;
}

void CheckEcn(const RdmaDevice& device, const NetInterface& interface, Findings& findings) {
  const std::string subject = absl::StrCat(interface.name, " (", device.name, ")");
  std::vector<int> one_sided;
  bool any = false;
  for (size_t priority = 0; priority < 8; ++priority) {
    const bool notifies = IsOn(interface.ecn.notifies[priority]);
    const bool reacts = IsOn(interface.ecn.reacts[priority]);
    any = any || (notifies && reacts);
    if (notifies != reacts) one_sided.push_back(static_cast<int>(priority));
  }
  if (!one_sided.empty()) {
    findings.push_back(
        {Severity::kWarning, "ecn-one-sided", subject,
         absl::StrCat("has only one half of DCQCN on for priority ", absl::StrJoin(one_sided, ", "),
                      " (roce_np, roce_rp)"),
         "turn both on: a host that does not notify lets its senders run into full queues"});
  } else if (!any) {
    findings.push_back({Severity::kWarning, "ecn-off", subject,
                        "has DCQCN off for every priority (roce_np, roce_rp)",
                        "unless congestion control is elsewhere (weft-cc, a lossless fabric by "
                        "design): turn both on for the priority of the job"});
  }
}

}  // namespace

const RdmaGid* ChosenGid(const RdmaPort& port) {
  const RdmaGid* other = nullptr;
  for (const RdmaGid& gid : port.gids) {
    if (!gid.roce_v2() || gid.link_local()) continue;
    if (gid.ipv4()) return &gid;
    if (other == nullptr) other = &gid;
  }
  return other;
}

void CheckDevices(const Node& node, Findings& findings) {
  if (node.devices.empty()) {
    findings.push_back({Severity::kNote, "no-rdma", "this host",
                        "has no RDMA device (/sys/class/infiniband)",
                        "jobs use tcp here; if there is such a NIC, load its driver (mlx5_ib, "
                        "bnxt_re, irdma)"});
    return;
  }
  std::vector<std::pair<std::string, int>> mtus;
  std::vector<std::pair<std::string, double>> rates;
  std::vector<std::pair<std::string, std::string>> firmware;
  for (const RdmaDevice& device : node.devices) {
    CheckNodes(node, device, findings);
    for (const RdmaPort& port : device.ports) {
      CheckPort(device, port, findings);
      CheckGids(device, port, findings);
      if (port.active() && port.gbps > 0) rates.emplace_back(PortName(device, port), port.gbps);
    }
    for (const NetInterface& interface : device.interfaces) {
      CheckMtu(device, interface, findings);
      if (interface.mtu > 0) mtus.emplace_back(interface.name, interface.mtu);
    }
    if (!device.firmware.empty() && !device.board.empty()) {
      firmware.emplace_back(device.name, absl::StrCat(device.board, "/", device.firmware));
    }
  }
  CheckEqual(mtus, "mtu-differs", "MTUs of the interfaces", "make them equal on all rails",
             findings);
  CheckEqual(rates, "rate-differs", "speeds of the ports (Gb/s)",
             "if they should be equal: look at the slow cable or its switch port", findings);
  CheckEqual(firmware, "firmware-differs", "boards and firmware",
             "bring equal boards to the same firmware", findings);
}

void CheckRetransmission(const Node& node, Findings& findings) {
  std::vector<std::pair<std::string, std::string>> adaptive;
  for (const RdmaDevice& device : node.devices) {
    if (!device.adaptive_retransmission.has_value()) continue;
    const bool is_on = IsOn(device.adaptive_retransmission);
    adaptive.emplace_back(device.name, is_on ? "on" : "off");
    if (is_on) continue;
    findings.push_back({Severity::kNote, "adaptive-retransmission-off", device.name,
                        "has adaptive retransmission off: what is lost goes again only after a "
                        "queue pair's whole timeout",
                        "as root: weft-doctor nics --adaptive-retransmission on --apply, or "
                        "WEFT_VERBS_ADAPTIVE_RETRANSMISSION=on for a job"});
  }
  CheckEqual(adaptive, "adaptive-retransmission-differs", "adaptive retransmission",
             "make it equal on all rails", findings);
}

void CheckCongestionControl(const Node& node, Findings& findings) {
  std::vector<std::pair<std::string, std::string>> ecn;
  std::vector<std::pair<std::string, std::string>> classes;
  for (const RdmaDevice& device : node.devices) {
    for (const NetInterface& interface : device.interfaces) {
      if (!interface.ecn.switches_known()) continue;
      CheckEcn(device, interface, findings);
      ecn.emplace_back(interface.name, EcnText(interface.ecn));
    }
    for (const RdmaPort& port : device.ports) {
      if (!port.ethernet || !port.traffic_class.has_value()) continue;
      const int64_t forced = port.traffic_class->value;
      classes.emplace_back(PortName(device, port),
                           forced == net::kNoTrafficClass ? "none" : absl::StrCat(forced));
    }
  }
  CheckEqual(ecn, "ecn-differs", "DCQCN's switches (np and rp of priorities 0 to 7)",
             "make them equal on all rails", findings);
  CheckEqual(classes, "traffic-class-differs", "traffic classes", "make them equal on all rails",
             findings);
}

void CheckCounters(const Node& node, Findings& findings) {
  for (const auto& [port, counters] : CountersOf(node.devices)) {
    for (const auto& [name, value] : counters) {
      const net::CounterInfo* info = net::FindCounter(name);
      if (info == nullptr || value <= 0) continue;
      findings.push_back(
          {Severity::kNote, absl::StrCat("counter-", ToString(info->which)), port,
           absl::StrCat(name, " is ", value, " since the device started: ", info->meaning),
           "see whether it grows: --watch 10s under load"});
    }
  }
}

void CheckGrowth(const PortCounters& before, const PortCounters& after, absl::Duration watched,
                 Findings& findings) {
  for (const auto& [port, counters] : after) {
    auto was = before.find(port);
    if (was == before.end()) continue;
    for (const auto& [name, growth] : net::Growth(was->second, counters)) {
      const net::CounterInfo* info = net::FindCounter(name);
      findings.push_back(
          {info->which == net::CounterClass::kCongestion ? Severity::kNote : Severity::kWarning,
           absl::StrCat("counter-", ToString(info->which), "-grows"), port,
           absl::StrCat(name, " grew by ", growth, " in ", absl::FormatDuration(watched), ": ",
                        info->meaning),
           std::string(info->advice)});
    }
  }
}

}  // namespace weft::doctor
