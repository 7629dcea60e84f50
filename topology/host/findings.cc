#include "topology/host/findings.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace weft::topology {
namespace {

std::string Gigabytes(Bandwidth bandwidth) {
  return absl::StrFormat("%.1f GB/s", bandwidth.bytes_per_second() / 1e9);
}

class Finder {
 public:
  Finder(const Machine& machine, const Distances& distances, const std::vector<GpuNics>& nics)
      : machine_(machine), distances_(distances), nics_(nics) {}

  std::vector<Finding> Find() {
    FarNics();
    GpusWithoutNic();
    NarrowLinks();
    UntrainedLinks();
    UnevenNics();
    PortsDown();
    NodesWithoutMemory();
    NoLocality();
    NcclChoosesOther();
    return std::move(findings_);
  }

 private:
  void Add(FindingKind kind, std::string subject, std::string sentence) {
    findings_.push_back({kind, std::move(subject), std::move(sentence)});
  }

  bool IsFar(const Distance& distance) const { return distance.type >= PathType::kSys; }

  void FarNics() {
    std::vector<int> far;
    for (int nic : machine_.nics()) {
      if (std::all_of(machine_.gpus().begin(), machine_.gpus().end(),
                      [&](int gpu) { return IsFar(distances_.Between(gpu, nic)); })) {
        far.push_back(nic);
      }
    }
    if (machine_.gpus().empty() || far.size() == machine_.nics().size()) return;
    for (int nic : far) {
      const int numa = machine_.device(nic).numa;
      Add(FindingKind::kNicFarFromGpus, Label(machine_.device(nic)),
          absl::StrCat(
              "is SYS from every GPU",
              numa < 0 ? ""
                       : absl::StrCat(", at NUMA node ",
                                      machine_.numa_nodes()[static_cast<size_t>(numa)].os_index),
              "; its traffic crosses the link between CPUs, and no GPU is assigned to it"));
    }
  }

  void GpusWithoutNic() {
    for (const GpuNics& one : nics_) {
      if (one.nearest.empty()) continue;
      const Distance distance = distances_.Between(one.gpu, one.nearest[0]);
      if (!IsFar(distance)) continue;
      Add(FindingKind::kGpuWithoutNic, machine_.device(one.gpu).name,
          absl::StrCat("has no NIC nearer than SYS; the nearest, ",
                       Label(machine_.device(one.nearest[0])), ", is reached with ",
                       Gigabytes(distance.bandwidth), " over the link between CPUs"));
    }
  }

  void NarrowLinks() {
    for (int nic : machine_.nics()) {
      const Device& device = machine_.device(nic);
      const Bandwidth line = LineRate(device);
      if (!device.link.known() ||
          line.bytes_per_second() <= device.link.bandwidth().bytes_per_second()) {
        continue;
      }
      Add(FindingKind::kLinkBelowLine, Label(device),
          absl::StrCat("has a line of ", ToString(line), " (", Gigabytes(line),
                       ") on a PCI link of ", ToString(device.link), " (",
                       Gigabytes(device.link.bandwidth()), "); a wider or faster slot is needed"));
    }
  }

  // Idle GPUs let the rate of their link fall and take it up again under load; the width stays.
  void UntrainedLinks() {
    for (const Device& device : machine_.devices()) {
      if (!device.link.known() || !device.link_max.known()) continue;
      const bool narrow = device.link.lanes < device.link_max.lanes;
      const bool slow = device.kind != DeviceKind::kGpu &&
                        device.link.gigatransfers < device.link_max.gigatransfers;
      if (!narrow && !slow) continue;
      Add(FindingKind::kLinkBelowItself, Label(device),
          absl::StrCat("runs its PCI link at ", ToString(device.link), " where both ends can ",
                       ToString(device.link_max), "; reseat the card or look at the riser"));
    }
  }

  void UnevenNics() {
    std::map<int, int> gpus_of;
    for (const GpuNics& one : nics_) {
      for (int nic : one.assigned) ++gpus_of[nic];
    }
    if (gpus_of.empty()) return;
    auto [least, most] =
        std::minmax_element(gpus_of.begin(), gpus_of.end(),
                            [](const auto& a, const auto& b) { return a.second < b.second; });
    if (most->second <= least->second) return;
    Add(FindingKind::kUnevenNics, Label(machine_.device(most->first)),
        absl::StrCat("serves ", most->second, " GPUs where ", Label(machine_.device(least->first)),
                     " serves ", least->second, "; the busier one sets the pace of every ring"));
  }

  void PortsDown() {
    for (int nic : machine_.nics()) {
      for (const NicPort& port : machine_.device(nic).ports) {
        if (port.up != false) continue;
        Add(FindingKind::kPortDown, machine_.device(nic).name,
            absl::StrCat("port ", port.number, " of ", port.name, " has no link"));
      }
    }
  }

  void NodesWithoutMemory() {
    for (const NumaNode& node : machine_.numa_nodes()) {
      if (node.cpus.empty() || node.memory != Bytes(0)) continue;
      Add(FindingKind::kNodeWithoutMemory, absl::StrCat("NUMA node ", node.os_index),
          absl::StrCat("has CPUs (", weft::ToString(node.cpus),
                       ") but no memory; fill its DIMM slots, or bind elsewhere"));
    }
  }

  void NoLocality() {
    if (machine_.numa_nodes().size() < 2) return;
    std::vector<std::string> names;
    for (const std::vector<int>* list : {&machine_.gpus(), &machine_.nics()}) {
      for (int device : *list) {
        if (machine_.device(device).numa < 0) names.push_back(machine_.device(device).name);
      }
    }
    if (names.empty()) return;
    Add(FindingKind::kNoLocality, absl::StrJoin(names, ", "),
        absl::StrCat("have no NUMA node, though there are ", machine_.numa_nodes().size(),
                     "; distances are guesses. In a virtual machine ask for a topology file "
                     "(NCCL_TOPO_FILE) or for NUMA affinity of its PCI devices"));
  }

  // ncclTopoGetLocal: of all NICs those with the widest path; the type decides among equals.
  void NcclChoosesOther() {
    for (const GpuNics& one : nics_) {
      if (one.nearest.empty()) continue;
      auto width = [&](int nic) {  // with the NIC's line, a link of NCCL's graph too
        const double path = distances_.Between(one.gpu, nic).bandwidth.bytes_per_second();
        const double line = LineRate(machine_.device(nic)).bytes_per_second();
        return line > 0 ? std::min(path, line) : path;
      };
      const int widest = *std::max_element(one.by_distance.begin(), one.by_distance.end(),
                                           [&](int a, int b) { return width(a) < width(b); });
      const PathType type = distances_.Between(one.gpu, widest).type;
      if (width(widest) <= width(one.nearest[0]) ||
          type <= distances_.Between(one.gpu, one.nearest[0]).type) {
        continue;
      }
      Add(FindingKind::kNcclChoosesOther, machine_.device(one.gpu).name,
          absl::StrFormat("is nearest to %s (%s), but NCCL takes %s (%s), whose path it deems "
                          "wider: %.1f against %.1f GB/s",
                          Label(machine_.device(one.nearest[0])),
                          ToString(distances_.Between(one.gpu, one.nearest[0]).type),
                          Label(machine_.device(widest)), ToString(type), width(widest) / 1e9,
                          width(one.nearest[0]) / 1e9));
    }
  }

  const Machine& machine_;
  const Distances& distances_;
  const std::vector<GpuNics>& nics_;
  std::vector<Finding> findings_;
};

}  // namespace

const char* ToString(FindingKind kind) {
  switch (kind) {
    case FindingKind::kNicFarFromGpus:
      return "nic-far-from-gpus";
    case FindingKind::kGpuWithoutNic:
      return "gpu-without-nic";
    case FindingKind::kLinkBelowLine:
      return "link-below-line";
    case FindingKind::kLinkBelowItself:
      return "link-below-itself";
    case FindingKind::kUnevenNics:
      return "uneven-nics";
    case FindingKind::kPortDown:
      return "port-down";
    case FindingKind::kNodeWithoutMemory:
      return "node-without-memory";
    case FindingKind::kNoLocality:
      return "no-locality";
    case FindingKind::kNcclChoosesOther:
      return "nccl-chooses-other";
  }
  return "?";
}

std::vector<Finding> FindingsOf(const Machine& machine, const Distances& distances,
                                const std::vector<GpuNics>& nics) {
  return Finder(machine, distances, nics).Find();
}

}  // namespace weft::topology
