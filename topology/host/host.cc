#include "topology/host/host.h"

#include <hwloc.h>

#include <algorithm>
#include <iterator>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "topology/host/hwloc_topology.h"

namespace weft {
namespace {

// The PUs of the object that are also in `allowed`; null: all of them.
CpuSet UsableCpus(hwloc_const_cpuset_t set, const CpuSet* allowed) {
  CpuSet cpus;
  for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu)) {
    if (allowed == nullptr || std::binary_search(allowed->begin(), allowed->end(), cpu)) {
      cpus.push_back(cpu);
    }
  }
  return cpus;
}

HostCore Place(hwloc_topology_t topology, hwloc_obj_t object, CpuSet cpus) {
  hwloc_obj_t package = hwloc_get_ancestor_obj_by_type(topology, HWLOC_OBJ_PACKAGE, object);
  int node = object->nodeset == nullptr ? -1 : hwloc_bitmap_first(object->nodeset);
  hwloc_obj_t numa = node < 0 ? nullptr : hwloc_get_numanode_obj_by_os_index(topology, node);
  return {package == nullptr ? 0 : static_cast<int>(package->logical_index),
          numa == nullptr ? 0 : static_cast<int>(numa->logical_index), std::move(cpus)};
}

// hwloc's logical order is depth first, so that neighbours are beside each other. Some virtual
// machines show PUs but no cores; then each PU counts as one.
std::vector<HostCore> Cores(hwloc_topology_t topology, const CpuSet* allowed) {
  bool has_cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0;
  hwloc_obj_type_t type = has_cores ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
  std::vector<HostCore> cores;
  for (hwloc_obj_t object = hwloc_get_next_obj_by_type(topology, type, nullptr); object != nullptr;
       object = hwloc_get_next_obj_by_type(topology, type, object)) {
    CpuSet cpus = UsableCpus(object->cpuset, allowed);
    if (!cpus.empty()) cores.push_back(Place(topology, object, std::move(cpus)));
  }
  return cores;
}

// The share [index * size / count, (index + 1) * size / count), which for all indices together is
// a partition into parts that differ by at most one.
std::pair<size_t, size_t> Share(size_t size, size_t index, size_t count) {
  return {index * size / count, (index + 1) * size / count};
}

}  // namespace

Host::Host(std::vector<HostCore> cores) : cores_(std::move(cores)) {
  std::set<int> packages;
  std::set<int> numa_nodes;
  for (const HostCore& core : cores_) {
    packages.insert(core.package);
    numa_nodes.insert(core.numa_node);
  }
  packages_ = static_cast<int>(packages.size());
  numa_nodes_ = static_cast<int>(numa_nodes.size());
}

absl::StatusOr<Host> Host::Discover() {
  WEFT_ASSIGN_OR_RETURN(CpuSet allowed, AllowedCpus());
  WEFT_ASSIGN_OR_RETURN(internal::HwlocTopology topology,
                        internal::LoadHwloc(nullptr, internal::HwlocDevices::kNone));
  std::vector<HostCore> cores = Cores(topology.get(), &allowed);
  if (cores.empty()) {
    return absl::NotFoundError(absl::StrCat(
        "hwloc shows none of the CPUs that this process may use: ", ToString(allowed)));
  }
  return Host(std::move(cores));
}

absl::StatusOr<Host> Host::FromSynthetic(absl::string_view description) {
  WEFT_ASSIGN_OR_RETURN(
      internal::HwlocTopology topology,
      internal::LoadHwloc(std::string(description).c_str(), internal::HwlocDevices::kNone));
  return Host(Cores(topology.get(), nullptr));
}

absl::StatusOr<Host> Host::FromCores(std::vector<HostCore> cores) {
  for (HostCore& core : cores) {
    if (core.cpus.empty()) return absl::InvalidArgumentError("a core without a CPU");
    std::sort(core.cpus.begin(), core.cpus.end());
  }
  if (cores.empty()) return absl::InvalidArgumentError("a host without cores");
  return Host(std::move(cores));
}

absl::StatusOr<Host> Host::Within(const CpuSet& cpus) const {
  std::vector<HostCore> cores;
  for (const HostCore& core : cores_) {
    HostCore part{core.package, core.numa_node, {}};
    std::set_intersection(core.cpus.begin(), core.cpus.end(), cpus.begin(), cpus.end(),
                          std::back_inserter(part.cpus));
    if (!part.cpus.empty()) cores.push_back(std::move(part));
  }
  if (cores.empty()) {
    return absl::NotFoundError(
        absl::StrCat("none of the CPUs ", ToString(cpus), " is among ", Describe()));
  }
  return Host(std::move(cores));
}

CpuSet Host::cpus() const {
  CpuSet all;
  for (const HostCore& core : cores_) all.insert(all.end(), core.cpus.begin(), core.cpus.end());
  std::sort(all.begin(), all.end());
  return all;
}

absl::StatusOr<CpuSet> Host::Slice(int index, int count) const {
  if (index < 0 || index >= count) {
    return absl::InvalidArgumentError(absl::StrCat("there is no slice ", index, " of ", count));
  }
  CpuSet slice;
  if (static_cast<size_t>(count) <= cores_.size()) {
    auto [begin, end] = Share(cores_.size(), index, count);
    for (size_t core = begin; core < end; ++core) {
      slice.insert(slice.end(), cores_[core].cpus.begin(), cores_[core].cpus.end());
    }
    std::sort(slice.begin(), slice.end());
    return slice;
  }
  CpuSet by_core;  // PUs of one core beside each other
  for (const HostCore& core : cores_) {
    by_core.insert(by_core.end(), core.cpus.begin(), core.cpus.end());
  }
  auto [begin, end] = Share(by_core.size(), index, count);
  slice.assign(by_core.begin() + begin, by_core.begin() + std::max(end, begin + 1));
  std::sort(slice.begin(), slice.end());
  return slice;
}

std::string Host::Describe() const {
  auto plural = [](size_t n, const char* noun) {
    return absl::StrCat(n, " ", noun, n == 1 ? "" : "s");
  };
  CpuSet all = cpus();
  return absl::StrCat(plural(packages_, "package"), ", ", plural(numa_nodes_, "NUMA node"), ", ",
                      plural(cores_.size(), "core"), ", ", plural(all.size(), "CPU"), " (",
                      ToString(all), ")");
}

}  // namespace weft
