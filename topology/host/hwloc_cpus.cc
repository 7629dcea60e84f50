#include "topology/host/hwloc_cpus.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/host/cpu_mask.h"

namespace weft::topology::internal {
namespace {

int InfoNumber(const XmlElement& object, absl::string_view name) {
  const std::string* text = FindInfo(object, name);
  int number = 0;
  return text != nullptr && absl::SimpleAtoi(*text, &number) ? number : 0;
}

std::string InfoText(const XmlElement& object, absl::string_view name) {
  const std::string* text = FindInfo(object, name);
  return text == nullptr ? "" : *text;
}

bool Contains(const CpuSet& all, const CpuSet& some) {
  return std::includes(all.begin(), all.end(), some.begin(), some.end());
}

class CpuReader {
 public:
  explicit CpuReader(MachineParts& parts) : parts_(parts) {}

  absl::Status Read(const XmlElement& machine) {
    WEFT_RETURN_IF_ERROR(Walk(machine, -1));
    // Some virtual machines show PUs but no cores; then each counts as one.
    for (auto& [package, cpus] : cores_.empty() ? pus_ : cores_) {
      const int numa = NumaNodeOf(parts_, cpus);
      parts_.cores.push_back({std::max(package, 0), std::max(numa, 0), std::move(cpus)});
    }
    std::stable_sort(parts_.cores.begin(), parts_.cores.end(),
                     [](const HostCore& a, const HostCore& b) {
                       return std::pair(a.package, a.numa_node) < std::pair(b.package, b.numa_node);
                     });
    return absl::OkStatus();
  }

 private:
  absl::Status Walk(const XmlElement& element, int package) {
    for (const XmlElement& child : element.children) {
      if (child.name != "object") continue;
      const std::string* type = child.Find("type");
      if (type == nullptr) return XmlError(child, "has no type");
      int inner = package;
      if (*type == "Package") {
        WEFT_ASSIGN_OR_RETURN(inner, AddPackage(child));
      } else if (*type == "NUMANode") {
        WEFT_RETURN_IF_ERROR(AddNumaNode(child, package));
      } else if (*type == "Core" || *type == "PU") {
        WEFT_ASSIGN_OR_RETURN(CpuSet cpus, CpusOf(child));
        auto& list = *type == "PU" ? pus_ : cores_;
        if (list.size() == kCoresMax) {
          return XmlError(child,
                          absl::StrCat("is ", *type, " ", kCoresMax + 1, "; at most ", kCoresMax));
        }
        if (!cpus.empty()) list.emplace_back(package, std::move(cpus));
      } else if (absl::StartsWith(*type, "L") && absl::EndsWith(*type, "Cache")) {
        WEFT_RETURN_IF_ERROR(AddCache(child));
      }
      WEFT_RETURN_IF_ERROR(Walk(child, inner));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<int> AddPackage(const XmlElement& object) {
    Package package;
    package.os_index = static_cast<int>(parts_.packages.size());
    if (object.Find("os_index") != nullptr) {
      WEFT_ASSIGN_OR_RETURN(int64_t number, NumberOf(object, "os_index"));
      package.os_index = static_cast<int>(number);
    }
    parts_.packages.push_back(package);
    CpuModel& cpu = parts_.cpu;
    if (cpu.vendor.empty()) cpu.vendor = InfoText(object, "CPUVendor");
    if (cpu.name.empty()) cpu.name = InfoText(object, "CPUModel");
    if (cpu.family == 0) cpu.family = InfoNumber(object, "CPUFamilyNumber");
    if (cpu.model == 0) cpu.model = InfoNumber(object, "CPUModelNumber");
    return static_cast<int>(parts_.packages.size()) - 1;
  }

  absl::Status AddNumaNode(const XmlElement& object, int package) {
    NumaNode node;
    WEFT_ASSIGN_OR_RETURN(int64_t number, NumberOf(object, "os_index"));
    node.os_index = static_cast<int>(number);
    for (const NumaNode& other : parts_.numa_nodes) {
      if (other.os_index == node.os_index) {
        return XmlError(object, absl::StrCat("is a second NUMA node ", number));
      }
    }
    if (parts_.numa_nodes.size() == kNumaNodesMax) {
      return XmlError(
          object, absl::StrCat("is NUMA node ", kNumaNodesMax + 1, "; at most ", kNumaNodesMax));
    }
    node.package = package;
    WEFT_ASSIGN_OR_RETURN(node.cpus, CpusOf(object));
    node.memory = Bytes(0);  // hwloc leaves the attribute out when there is none
    if (object.Find("local_memory") != nullptr) {
      WEFT_ASSIGN_OR_RETURN(int64_t bytes, NumberOf(object, "local_memory"));
      node.memory = Bytes(bytes);
    }
    parts_.numa_nodes.push_back(std::move(node));
    return absl::OkStatus();
  }

  absl::Status AddCache(const XmlElement& object) {
    Cache cache;
    WEFT_ASSIGN_OR_RETURN(int64_t level, NumberOf(object, "depth"));
    WEFT_ASSIGN_OR_RETURN(int64_t size, NumberOf(object, "cache_size"));
    WEFT_ASSIGN_OR_RETURN(int64_t type, NumberOf(object, "cache_type"));
    if (level < 1 || level > 9 || type > 2) return XmlError(object, "is no cache that hwloc knows");
    cache.level = static_cast<int>(level);
    cache.size = Bytes(size);
    cache.type = "udi"[type];
    WEFT_ASSIGN_OR_RETURN(cache.cpus, CpusOf(object));
    parts_.caches.push_back(std::move(cache));
    return absl::OkStatus();
  }

  MachineParts& parts_;
  std::vector<std::pair<int, CpuSet>> cores_, pus_;  // with their package
};

}  // namespace

const std::string* FindInfo(const XmlElement& object, absl::string_view name) {
  for (const XmlElement& child : object.children) {
    if (child.name != "info") continue;
    const std::string* key = child.Find("name");
    if (key != nullptr && *key == name) return child.Find("value");
  }
  return nullptr;
}

absl::StatusOr<int64_t> NumberOf(const XmlElement& object, absl::string_view attribute) {
  const std::string* text = object.Find(attribute);
  if (text == nullptr) return XmlError(object, absl::StrCat("has no ", attribute));
  int64_t number = 0;
  if (!absl::SimpleAtoi(*text, &number) || number < 0) {
    return XmlError(object, absl::StrCat(attribute, " '", *text, "' is no number from 0"));
  }
  // os_index and the like become int; sizes may be larger.
  if (number > INT32_MAX && !absl::EndsWith(attribute, "memory") &&
      !absl::EndsWith(attribute, "size")) {
    return XmlError(object, absl::StrCat(attribute, " ", number, " is absurdly large"));
  }
  return number;
}

absl::StatusOr<CpuSet> CpusOf(const XmlElement& object) {
  const std::string* text = object.Find("cpuset");
  if (text == nullptr) return XmlError(object, "has no cpuset");
  std::optional<CpuSet> cpus = ParseCpuMask(*text);
  if (!cpus.has_value()) {
    return XmlError(object, absl::StrCat("cpuset '", *text,
                                         "' is no mask of at most 8192 CPUs, as 0x0000ffff"));
  }
  return *std::move(cpus);
}

absl::Status ReadCpus(const XmlElement& machine, MachineParts& parts) {
  return CpuReader(parts).Read(machine);
}

int NumaNodeOf(const MachineParts& parts, const CpuSet& cpus) {
  int narrowest = -1;
  int touched = -1;
  int touched_count = 0;
  for (size_t i = 0; i < parts.numa_nodes.size(); ++i) {
    const NumaNode& node = parts.numa_nodes[i];
    if (node.cpus.empty()) continue;
    const bool has_memory = node.memory.value_or(Bytes(1)) > Bytes(0);
    if (Contains(node.cpus, cpus)) {
      auto rank = [](const NumaNode& n) { return std::pair(n.cpus.size(), n.memory == Bytes(0)); };
      const bool better =
          narrowest < 0 || rank(node) < rank(parts.numa_nodes[static_cast<size_t>(narrowest)]);
      if (better) narrowest = static_cast<int>(i);
    }
    if (has_memory && std::find_first_of(cpus.begin(), cpus.end(), node.cpus.begin(),
                                         node.cpus.end()) != cpus.end()) {
      touched = static_cast<int>(i);
      ++touched_count;
    }
  }
  if (narrowest >= 0) return narrowest;
  return touched_count == 1 ? touched : -1;
}

}  // namespace weft::topology::internal
