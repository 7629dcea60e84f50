#include "topology/host/binding.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace weft::topology {
namespace {

bool IsDown(const Device& nic) {
  return !nic.ports.empty() && std::all_of(nic.ports.begin(), nic.ports.end(),
                                           [](const NicPort& port) { return port.up == false; });
}

// Less is nearer.
std::pair<bool, std::pair<PathType, double>> Rank(const Machine& machine, const Distance& distance,
                                                  int nic) {
  return {IsDown(machine.device(nic)), {distance.type, -distance.bandwidth.bytes_per_second()}};
}

std::string Names(const Machine& machine, const std::vector<int>& devices) {
  return absl::StrJoin(devices, ", ", [&](std::string* out, int device) {
    absl::StrAppend(out, machine.device(device).name);
  });
}

std::string Reason(const Machine& machine, const Distances& distances, const GpuNics& one,
                   const std::vector<int>& sharers) {
  if (one.nearest.empty()) return "there is no NIC";
  const Distance distance = distances.Between(one.gpu, one.nearest[0]);
  std::string reason = ToString(distance.type);
  const std::string route = distances.Route(one.gpu, one.nearest[0]);
  if (!route.empty()) absl::StrAppend(&reason, " over ", route);
  absl::StrAppendFormat(&reason, ", %.1f GB/s", distance.bandwidth.bytes_per_second() / 1e9);
  std::vector<int> as_near;
  std::set_difference(one.nearest.begin(), one.nearest.end(), one.assigned.begin(),
                      one.assigned.end(), std::back_inserter(as_near));
  if (!as_near.empty()) absl::StrAppend(&reason, "; as near: ", Names(machine, as_near));
  std::vector<int> others;
  for (int gpu : sharers) {
    if (gpu != one.gpu) others.push_back(gpu);
  }
  if (!others.empty() && one.nearest.size() < sharers.size()) {
    absl::StrAppend(&reason, "; shared with ", Names(machine, others));
  }
  if (!distance.known) absl::StrAppend(&reason, "; a guess, as no locality is told");
  return reason;
}

// Which of `nearest` the `index`-th of `count` GPUs with the same ones uses.
std::vector<int> Assigned(const std::vector<int>& nearest, size_t index, size_t count) {
  if (nearest.empty()) return {};
  const size_t begin = index * nearest.size() / count;
  const size_t end = std::max((index + 1) * nearest.size() / count, begin + 1);
  return {nearest.begin() + static_cast<ptrdiff_t>(begin),
          nearest.begin() + static_cast<ptrdiff_t>(end)};
}

CpuSet Usable(const Machine& machine, const CpuSet& cpus) {
  if (!machine.host().has_value()) return {};
  absl::StatusOr<Host> part = machine.host()->Within(cpus);
  return part.ok() ? part->cpus() : CpuSet();
}

CpuSet Common(const CpuSet& a, const CpuSet& b) {
  CpuSet common;
  std::set_intersection(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(common));
  return common;
}

}  // namespace

std::vector<GpuNics> NicsOfGpus(const Machine& machine, const Distances& distances) {
  std::vector<GpuNics> all;
  std::map<std::vector<int>, std::vector<int>> gpus_of;  // by their nearest NICs
  for (int gpu : machine.gpus()) {
    GpuNics one;
    one.gpu = gpu;
    one.by_distance = machine.nics();
    auto rank = [&](int nic) { return Rank(machine, distances.Between(gpu, nic), nic); };
    std::stable_sort(one.by_distance.begin(), one.by_distance.end(),
                     [&](int a, int b) { return rank(a) < rank(b); });
    for (int nic : one.by_distance) {
      if (distances.Between(gpu, nic).type == PathType::kDis) break;
      if (rank(nic) != rank(one.by_distance[0])) break;
      one.nearest.push_back(nic);
    }
    gpus_of[one.nearest].push_back(gpu);
    all.push_back(std::move(one));
  }
  for (GpuNics& one : all) {
    const std::vector<int>& sharers = gpus_of[one.nearest];
    const auto index = std::find(sharers.begin(), sharers.end(), one.gpu) - sharers.begin();
    one.assigned = Assigned(one.nearest, static_cast<size_t>(index), sharers.size());
    one.reason = Reason(machine, distances, one, sharers);
  }
  return all;
}

CpuSet CpusNear(const Machine& machine, const Distances& distances, int device) {
  if (!machine.host().has_value()) return {};
  if (machine.device(device).numa < 0) return machine.host()->cpus();
  std::vector<std::pair<std::pair<int, bool>, int>> order;  // hops, another package, node
  const auto& nodes = machine.numa_nodes();
  const int home = nodes[static_cast<size_t>(machine.device(device).numa)].package;
  for (int numa = 0; numa < static_cast<int>(nodes.size()); ++numa) {
    const bool away = nodes[static_cast<size_t>(numa)].package != home;
    order.push_back({{distances.ToNuma(device, numa).hops, away}, numa});
  }
  std::sort(order.begin(), order.end());
  for (const auto& [unused, numa] : order) {
    CpuSet cpus = Usable(machine, nodes[static_cast<size_t>(numa)].cpus);
    if (!cpus.empty()) return cpus;
  }
  return machine.host()->cpus();
}

CpuSet ProgressCpus(const Machine& machine, const Distances& distances, int nic,
                    const CpuSet& process) {
  CpuSet near = CpusNear(machine, distances, nic);
  if (near.empty()) return process;
  CpuSet common = Common(process, near);
  return common.empty() ? near : common;
}

absl::StatusOr<std::vector<ProcessBinding>> PlanBindings(const Machine& machine,
                                                         const Distances& distances, int count) {
  if (count < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("there is no binding of ", count, " processes; at least 1"));
  }
  if (!machine.host().has_value()) {
    return absl::FailedPreconditionError("no CPU of this machine is known");
  }
  std::vector<ProcessBinding> plan(static_cast<size_t>(count));
  std::map<CpuSet, std::vector<int>> sharers;  // processes by the CPUs that they share
  const std::vector<GpuNics> nics = NicsOfGpus(machine, distances);
  for (int i = 0; i < count; ++i) {
    ProcessBinding& one = plan[static_cast<size_t>(i)];
    one.process = i;
    if (nics.empty()) {
      one.nics = machine.nics();
      sharers[machine.host()->cpus()].push_back(i);
      continue;
    }
    const GpuNics& of_gpu = nics[static_cast<size_t>(i) * nics.size() / plan.size()];
    one.gpu = of_gpu.gpu;
    one.nics = of_gpu.assigned;
    sharers[CpusNear(machine, distances, one.gpu)].push_back(i);
  }
  for (const auto& [cpus, processes] : sharers) {
    WEFT_ASSIGN_OR_RETURN(Host part, machine.host()->Within(cpus));
    const int share = static_cast<int>(processes.size());
    for (int i = 0; i < share; ++i) {
      ProcessBinding& one = plan[static_cast<size_t>(processes[static_cast<size_t>(i)])];
      WEFT_ASSIGN_OR_RETURN(one.cpus, part.Slice(i, share));
      one.progress =
          one.nics.empty() ? one.cpus : ProgressCpus(machine, distances, one.nics[0], one.cpus);
      one.reason = one.gpu < 0 ? absl::StrCat("share ", i + 1, " of ", share, " of all cores")
                               : absl::StrCat("share ", i + 1, " of ", share, " of the cores near ",
                                              machine.device(one.gpu).name);
      if (Common(one.progress, one.cpus).empty()) {
        absl::StrAppend(&one.reason, "; its NIC is elsewhere, and so its progress thread");
      }
    }
  }
  return plan;
}

}  // namespace weft::topology
