#include "topology/host/machine.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/settings.h"
#include "base/status.h"

namespace weft::topology {
namespace {

absl::Status Bad(const Device& device, size_t index, absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(
      "device ", index, " (", ToString(device.kind),
      device.address.has_value() ? absl::StrCat(" ", ToString(*device.address)) : "", ") ", what));
}

absl::Status CheckDevices(const MachineParts& parts) {
  std::set<PciAddress> seen;
  for (size_t i = 0; i < parts.devices.size(); ++i) {
    const Device& device = parts.devices[i];
    if (device.parent < -1 || device.parent >= static_cast<int>(i)) {
      return Bad(device, i, absl::StrCat("hangs on device ", device.parent, ", no earlier one"));
    }
    if (device.parent >= 0 &&
        parts.devices[static_cast<size_t>(device.parent)].kind != DeviceKind::kSwitch) {
      return Bad(device, i,
                 absl::StrCat("hangs on device ", device.parent, ", which is no switch"));
    }
    if (device.numa < -1 || device.numa >= static_cast<int>(parts.numa_nodes.size())) {
      return Bad(device, i,
                 absl::StrCat("is at NUMA node ", device.numa, " of ", parts.numa_nodes.size()));
    }
    if (device.address.has_value() && !seen.insert(*device.address).second) {
      return Bad(device, i, "has the address of another device");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCount(size_t count, size_t most, absl::string_view what) {
  if (count <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(count, " ", what, "; at most ", most));
}

absl::Status CheckNumaNodes(const MachineParts& parts) {
  std::set<int> seen;
  for (const NumaNode& node : parts.numa_nodes) {
    if (node.package < -1 || node.package >= static_cast<int>(parts.packages.size())) {
      return absl::InvalidArgumentError(absl::StrCat("NUMA node ", node.os_index, " is in package ",
                                                     node.package, " of ", parts.packages.size()));
    }
    if (!seen.insert(node.os_index).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("there are two NUMA nodes with the number ", node.os_index));
    }
  }
  return absl::OkStatus();
}

bool Before(const Device& a, const Device& b) {
  if (a.address.has_value() != b.address.has_value()) return a.address.has_value();
  return a.address.has_value() && *a.address < *b.address;
}

// Depth first, siblings by address.
std::vector<Device> Ordered(std::vector<Device> devices) {
  std::vector<std::vector<size_t>> children(devices.size() +
                                            1);  // of the i-th; the last: no parent
  for (size_t i = 0; i < devices.size(); ++i) {
    int parent = devices[i].parent;
    children[parent < 0 ? devices.size() : static_cast<size_t>(parent)].push_back(i);
  }
  std::vector<size_t> stack;
  auto push = [&](std::vector<size_t>& list) {
    std::stable_sort(list.begin(), list.end(),
                     [&](size_t a, size_t b) { return Before(devices[a], devices[b]); });
    stack.insert(stack.end(), list.rbegin(), list.rend());
  };
  std::vector<int> place(devices.size());
  std::vector<Device> ordered;
  push(children.back());
  while (!stack.empty()) {
    const size_t at = stack.back();
    stack.pop_back();
    place[at] = static_cast<int>(ordered.size());
    push(children[at]);
    Device device = std::move(devices[at]);
    if (device.parent >= 0) {
      device.parent = place[static_cast<size_t>(device.parent)];
      device.numa = ordered[static_cast<size_t>(device.parent)].numa;
    }
    ordered.push_back(std::move(device));
  }
  return ordered;
}

std::vector<int> OfKind(const std::vector<Device>& devices, DeviceKind kind) {
  std::vector<int> found;
  for (size_t i = 0; i < devices.size(); ++i) {
    if (devices[i].kind == kind) found.push_back(static_cast<int>(i));
  }
  std::stable_sort(found.begin(), found.end(), [&](int a, int b) {
    return Before(devices[static_cast<size_t>(a)], devices[static_cast<size_t>(b)]);
  });
  return found;
}

// The numbers of `gpus`, where NVML gave each its own; else 0, 1, 2...
std::vector<int> Numbers(const std::vector<Device>& devices, const std::vector<int>& gpus) {
  std::vector<int> numbers;
  std::set<int> different;
  for (int gpu : gpus) {
    numbers.push_back(devices[static_cast<size_t>(gpu)].index);
    if (numbers.back() >= 0) different.insert(numbers.back());
  }
  if (different.size() != gpus.size()) std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

std::string Count(size_t n, absl::string_view noun) {
  return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
}

}  // namespace

Machine::Machine(MachineParts parts) : parts_(std::move(parts)) {
  std::vector<Device>& devices = parts_.devices;
  for (DeviceKind kind : {DeviceKind::kSwitch, DeviceKind::kGpu, DeviceKind::kNic,
                          DeviceKind::kNvSwitch, DeviceKind::kStorage, DeviceKind::kOther}) {
    std::vector<int> found = OfKind(devices, kind);
    std::vector<int> numbers(found.size());
    std::iota(numbers.begin(), numbers.end(), 0);
    if (kind == DeviceKind::kGpu) {
      numbers = Numbers(devices, found);
      gpus_ = found;
    }
    for (size_t i = 0; i < found.size(); ++i) {
      devices[static_cast<size_t>(found[i])].name = absl::StrCat(ToString(kind), numbers[i]);
    }
    if (kind == DeviceKind::kNic) nics_ = found;
  }
  std::sort(gpus_.begin(), gpus_.end(), [&](int a, int b) {
    const std::string& left = device(a).name;
    const std::string& right = device(b).name;
    return left.size() != right.size() ? left.size() < right.size() : left < right;
  });
}

absl::StatusOr<Machine> Machine::Create(MachineParts parts) {
  WEFT_RETURN_IF_ERROR(CheckCount(parts.devices.size(), kDevicesMax, "devices"));
  WEFT_RETURN_IF_ERROR(CheckCount(parts.numa_nodes.size(), kNumaNodesMax, "NUMA nodes"));
  WEFT_RETURN_IF_ERROR(CheckCount(parts.cores.size(), kCoresMax, "cores"));
  WEFT_RETURN_IF_ERROR(CheckNumaNodes(parts));
  WEFT_RETURN_IF_ERROR(CheckDevices(parts));
  parts.devices = Ordered(std::move(parts.devices));
  std::optional<Host> host;
  if (!parts.cores.empty()) {
    WEFT_ASSIGN_OR_RETURN(host, Host::FromCores(std::move(parts.cores)));
    parts.cores.clear();
  }
  Machine machine(std::move(parts));
  machine.host_ = std::move(host);
  return machine;
}

absl::StatusOr<int> Machine::Find(absl::string_view name) const {
  const std::optional<PciAddress> address = ParsePciAddress(name);
  const std::string lower = absl::AsciiStrToLower(name);
  std::vector<std::string> names;
  for (size_t i = 0; i < devices().size(); ++i) {
    const Device& device = devices()[i];
    bool found = device.name == lower || (address.has_value() && device.address == address);
    names.push_back(device.name);
    for (const NicPort& port : device.ports) {
      found = found || port.name == name;
      names.push_back(port.name);
    }
    for (const std::string& interface : device.interfaces) {
      found = found || interface == name;
      names.push_back(interface);
    }
    if (found) return static_cast<int>(i);
  }
  return absl::NotFoundError(
      absl::StrCat("there is no device '", name, "' here",
                   names.empty() ? "" : absl::StrCat("; nearest: ", NearestName(name, names))));
}

std::string Machine::Describe() const {
  std::string text = Count(numa_nodes().size(), "NUMA node");
  if (!packages().empty() && host_.has_value()) {
    text = host_->Describe();
  } else if (host_.has_value()) {  // a file that knows neither packages nor cores
    const CpuSet cpus = host_->cpus();
    absl::StrAppend(&text, ", ", Count(cpus.size(), "CPU"), " (", weft::ToString(cpus), ")");
  }
  return absl::StrCat(text, ", ", Count(gpus_.size(), "GPU"), ", ", Count(nics_.size(), "NIC"));
}

std::string Label(const Device& device) {
  std::string label = device.name;
  if (device.kind != DeviceKind::kNic) return label;
  if (!device.ports.empty()) {
    absl::StrAppend(&label, " (", device.ports[0].name, ")");
  } else if (!device.interfaces.empty()) {
    absl::StrAppend(&label, " (", device.interfaces[0], ")");
  }
  return label;
}

Bandwidth LineRate(const Device& nic) {
  double sum = 0;
  for (const NicPort& port : nic.ports) sum += port.bandwidth.bytes_per_second();
  return Bandwidth::BytesPerSecond(sum);
}

}  // namespace weft::topology
