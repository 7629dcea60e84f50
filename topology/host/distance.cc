#include "topology/host/distance.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"

namespace weft::topology {
namespace {

enum class LinkType : uint8_t { kLocal, kNvLink, kC2c, kPci, kInterCpu };
enum class VertexKind : uint8_t { kNone, kGpu, kNic, kSwitch, kNvSwitch, kCpu };

struct Link {
  size_t to = 0;
  LinkType type = LinkType::kLocal;
  double bandwidth = 0;  // bytes a second
};

Bandwidth GigabytesPerSecond(double value) { return Bandwidth::BytesPerSecond(value * 1e9); }
constexpr double kLocalGigabytes = 5000;  // LOC_BW

// NCCL takes a Broadcom switch of two levels for the one that it is (getBcmGen in topo.cc). The
// generation of such a switch at `level` (0: the upper), 0: another switch.
int BroadcomGeneration(const PciIdentity& identity, int level) {
  if (identity.vendor != 0x1000 || identity.subsystem_vendor != 0x1000) return 0;
  const int subsystem = identity.subsystem_device & 0xf000;
  if (identity.device == 0xc010 && subsystem == 0xa000) return 4;
  if (identity.device == 0xc030 && subsystem == level * 0x1000) return 5;
  return 0;
}

class Graph {
 public:
  explicit Graph(const Machine& machine)
      : machine_(machine),
        numa_(machine.devices().size()),
        somewhere_(numa_ + machine.numa_nodes().size()),
        nvswitch_(somewhere_ + 1),
        kinds_(nvswitch_ + 1, VertexKind::kNone),
        links_(nvswitch_ + 1) {
    AddCpus();
    for (size_t i = 0; i < machine.devices().size(); ++i) AddDevice(i);
    for (size_t i = 0; i < machine.devices().size(); ++i) AddNvLinks(i);
    for (std::vector<Link>& links : links_) {  // NCCL: the widest first
      std::stable_sort(links.begin(), links.end(),
                       [](const Link& a, const Link& b) { return a.bandwidth > b.bandwidth; });
    }
  }

  size_t size() const { return links_.size(); }
  VertexKind kind(size_t vertex) const { return kinds_[vertex]; }
  const std::vector<Link>& links(size_t vertex) const { return links_[vertex]; }
  size_t somewhere() const { return somewhere_; }
  bool somewhere_is_ambiguous() const { return machine_.numa_nodes().size() > 1; }

  std::string Name(size_t vertex) const {
    if (vertex < numa_) return machine_.devices()[vertex].name;
    if (vertex < somewhere_) {
      return absl::StrCat("NUMA node ", machine_.numa_nodes()[vertex - numa_].os_index);
    }
    return vertex == somewhere_ ? "the CPU" : "the NVSwitch";
  }

 private:
  void Connect(size_t a, size_t b, LinkType type, Bandwidth bandwidth) {
    for (auto [from, to] : {std::pair(a, b), std::pair(b, a)}) {
      auto same = std::find_if(links_[from].begin(), links_[from].end(), [&, to = to](Link& link) {
        return link.to == to && link.type == type;
      });
      if (same == links_[from].end()) {
        links_[from].push_back({to, type, bandwidth.bytes_per_second()});
      } else {
        same->bandwidth += bandwidth.bytes_per_second();
      }
    }
  }

  void AddCpus() {
    const Bandwidth between = NcclInterCpuBandwidth(machine_.cpu());
    bool unknown = false;
    for (const Device& device : machine_.devices()) unknown = unknown || device.numa < 0;
    const size_t end = unknown ? somewhere_ + 1 : somewhere_;
    for (size_t i = numa_; i < end; ++i) {
      kinds_[i] = VertexKind::kCpu;
      for (size_t j = numa_; j < i; ++j) Connect(j, i, LinkType::kInterCpu, between);
    }
  }

  size_t CpuOf(const Device& device) const {
    return device.numa < 0 ? somewhere_ : numa_ + static_cast<size_t>(device.numa);
  }

  // Representative of the merged switch that `index` belongs to.
  int Merged(int index) const {
    const Device& device = machine_.device(index);
    const int generation = BroadcomGeneration(device.identity, 1);
    if (device.parent >= 0 && generation != 0 &&
        BroadcomGeneration(machine_.device(device.parent).identity, 0) == generation) {
      return Merged(device.parent);
    }
    return index;
  }

  void AddDevice(size_t index) {
    const Device& device = machine_.devices()[index];
    switch (device.kind) {
      case DeviceKind::kGpu:
        kinds_[index] = VertexKind::kGpu;
        break;
      case DeviceKind::kNic:
        kinds_[index] = VertexKind::kNic;
        break;
      case DeviceKind::kSwitch:
        kinds_[index] = VertexKind::kSwitch;
        break;
      default:
        return;
    }
    if (Merged(static_cast<int>(index)) != static_cast<int>(index)) return;
    const size_t parent =
        device.parent < 0 ? CpuOf(device) : static_cast<size_t>(Merged(device.parent));
    const PciLink& link = device.link_max.known() ? device.link_max : device.link;
    Connect(index, parent, LinkType::kPci,
            device.address.has_value() ? NcclBandwidth(link) : GigabytesPerSecond(kLocalGigabytes));
    if (device.c2c > Bandwidth()) Connect(index, CpuOf(device), LinkType::kC2c, device.c2c);
  }

  void AddNvLinks(size_t index) {
    const Device& gpu = machine_.devices()[index];
    for (const NvLink& link : gpu.nvlinks) {
      const Bandwidth bandwidth = NcclNvLinkBandwidth(gpu.compute_capability, link.count);
      if (link.target_kind == DeviceKind::kNvSwitch) {  // all are one, as for NCCL
        kinds_[nvswitch_] = VertexKind::kNvSwitch;
        Connect(index, nvswitch_, LinkType::kNvLink, bandwidth);
      } else if (link.target_kind != DeviceKind::kGpu) {
        Connect(index, CpuOf(gpu), LinkType::kNvLink, bandwidth);
      } else if (std::optional<PciAddress> address = ParsePciAddress(link.target)) {
        for (int other : machine_.gpus()) {  // both ends name the link; each adds its direction
          if (machine_.device(other).address != address) continue;
          links_[index].push_back(
              {static_cast<size_t>(other), LinkType::kNvLink, bandwidth.bytes_per_second()});
        }
      }
    }
  }

  const Machine& machine_;
  size_t numa_, somewhere_, nvswitch_;  // first vertex of NUMA nodes; the two single ones
  std::vector<VertexKind> kinds_;
  std::vector<std::vector<Link>> links_;
};

PathType TypeOf(LinkType type) {
  switch (type) {
    case LinkType::kLocal:
      return PathType::kLoc;
    case LinkType::kNvLink:
      return PathType::kNvl;
    case LinkType::kC2c:
      return PathType::kC2c;
    case LinkType::kPci:
      return PathType::kPix;
    case LinkType::kInterCpu:
      return PathType::kSys;
  }
  return PathType::kDis;
}

// One row of the table: breadth first from `from`, as ncclTopoSetPaths does it.
class Search {
 public:
  Search(const Graph& graph, size_t from, Distance* row, int* previous)
      : graph_(graph), from_(from), row_(row), previous_(previous) {
    row_[from] = {PathType::kLoc, 0, GigabytesPerSecond(kLocalGigabytes), true};
    std::vector<size_t> turn = {from};
    while (!turn.empty()) {
      std::vector<size_t> next;
      for (size_t at : turn) {
        for (const Link& link : graph.links(at)) Step(at, link, next);
      }
      turn = std::move(next);
    }
  }

 private:
  void Step(size_t at, const Link& link, std::vector<size_t>& next) {
    const Distance& path = row_[at];
    Distance& old = row_[link.to];
    // A GPU passes on only what comes and goes by NVLink, and for one GPU further.
    if (at != from_ && graph_.kind(at) == VertexKind::kGpu &&
        (link.type != LinkType::kNvLink || graph_.kind(link.to) != VertexKind::kGpu ||
         path.hops > 1)) {
      return;
    }
    if (at != from_ && graph_.kind(at) == VertexKind::kNic) return;
    const double bandwidth = std::min(path.bandwidth.bytes_per_second(), link.bandwidth);
    const bool shorter = old.type == PathType::kDis || old.hops > path.hops;
    if (!shorter || old.bandwidth.bytes_per_second() >= bandwidth) return;
    old.hops = path.hops + 1;
    old.bandwidth = Bandwidth::BytesPerSecond(bandwidth);
    old.type = std::max(path.type, StepType(at, link, path, old.hops));
    old.known = path.known && !(link.to == graph_.somewhere() && graph_.somewhere_is_ambiguous());
    previous_[link.to] = static_cast<int>(at);
    if (std::find(next.begin(), next.end(), link.to) == next.end()) next.push_back(link.to);
  }

  PathType StepType(size_t at, const Link& link, const Distance& path, int hops) const {
    const VertexKind here = graph_.kind(at);
    const VertexKind there = graph_.kind(link.to);
    if (link.type == LinkType::kPci) {
      if (here == VertexKind::kCpu || there == VertexKind::kCpu) return PathType::kPhb;
      if (here == VertexKind::kSwitch && there == VertexKind::kSwitch) return PathType::kPxb;
    }
    if (link.type == LinkType::kNvLink && here == VertexKind::kGpu && hops > 1 &&
        path.type == PathType::kNvl) {
      return PathType::kNvb;
    }
    return TypeOf(link.type);
  }

  const Graph& graph_;
  size_t from_;
  Distance* row_;
  int* previous_;
};

bool SameCard(const Device& a, const Device& b) {
  return a.address.has_value() && b.address.has_value() && a.address->domain == b.address->domain &&
         a.address->bus == b.address->bus && a.address->device == b.address->device;
}

}  // namespace

const char* ToString(PathType type) {
  switch (type) {
    case PathType::kLoc:
      return "LOC";
    case PathType::kNvl:
      return "NVL";
    case PathType::kNvb:
      return "NVB";
    case PathType::kC2c:
      return "C2C";
    case PathType::kPix:
      return "PIX";
    case PathType::kPxb:
      return "PXB";
    case PathType::kP2c:
      return "P2C";
    case PathType::kPhb:
      return "PHB";
    case PathType::kSys:
      return "SYS";
    case PathType::kDis:
      return "DIS";
  }
  return "?";
}

const char* Meaning(PathType type) {
  switch (type) {
    case PathType::kLoc:
      return "the same device";
    case PathType::kNvl:
      return "NVLink";
    case PathType::kNvb:
      return "NVLinks over another GPU";
    case PathType::kC2c:
      return "the CPU's own link to its GPU";
    case PathType::kPix:
      return "at most one PCI switch between";
    case PathType::kPxb:
      return "several PCI switches between, no CPU";
    case PathType::kP2c:
      return "the CPU's own link to its GPU, then PCI";
    case PathType::kPhb:
      return "through the CPU of one NUMA node";
    case PathType::kSys:
      return "from one NUMA node to another";
    case PathType::kDis:
      return "no path";
  }
  return "?";
}

Bandwidth NcclBandwidth(PciLink link) {
  // kvDictPciGen of topo.cc, in 100 Mb/s a lane; a rate that it does not know counts as 8 GT/s, a
  // width of 0 as 16.
  int speed = 60;
  if (link.gigatransfers == 2.5) speed = 15;
  if (link.gigatransfers == 5) speed = 30;
  if (link.gigatransfers == 16) speed = 120;
  if (link.gigatransfers == 32) speed = 240;
  if (link.gigatransfers == 64) speed = 480;
  return GigabytesPerSecond((link.lanes == 0 ? 16 : link.lanes) * speed / 80.0);
}

Bandwidth NcclNvLinkBandwidth(int compute_capability, int links) {
  // SM60_NVLINK_BW... of topo.h, GB/s a link.
  double one = 20;
  if (compute_capability >= 100) {
    one = 40.1;
  } else if (compute_capability >= 90) {
    one = 20.6;
  } else if (compute_capability == 86) {
    one = 12;
  } else if (compute_capability >= 60 && compute_capability < 70) {
    one = 18;
  }
  return GigabytesPerSecond(one * links);
}

Bandwidth NcclInterCpuBandwidth(const CpuModel& cpu) {
  // ncclTopoGetInterCpuBw; GB/s.
  if (cpu.architecture == "aarch64") return GigabytesPerSecond(6);
  if (cpu.architecture == "ppc64le" || cpu.architecture == "ppc64") return GigabytesPerSecond(32);
  if (cpu.vendor == "GenuineIntel") {
    if (cpu.family != 6 || cpu.model < 0x55) return GigabytesPerSecond(6);  // Broadwell
    if (cpu.model < 0x8f) return GigabytesPerSecond(10);                    // Skylake
    return GigabytesPerSecond(cpu.model < 0xcf ? 22 : 40);  // Sapphire, Emerald Rapids
  }
  if (cpu.vendor == "AuthenticAMD") {
    return GigabytesPerSecond(cpu.family >= 26 ? 32 : cpu.family == 25 ? 24 : 16);  // Zen 5, 3, 1
  }
  return GigabytesPerSecond(kLocalGigabytes);
}

Distances::Distances(const Machine& machine) : devices_(machine.devices().size()) {
  const Graph graph(machine);
  vertices_ = graph.size();
  table_.resize(vertices_ * vertices_);
  previous_.assign(vertices_ * vertices_, -1);
  for (size_t i = 0; i < vertices_; ++i) names_.push_back(graph.Name(i));
  for (size_t i = 0; i < devices_; ++i) {
    if (graph.kind(i) != VertexKind::kGpu && graph.kind(i) != VertexKind::kNic) continue;
    Search(graph, i, &table_[i * vertices_], &previous_[i * vertices_]);
  }
  for (int a : machine.nics()) {
    for (int b : machine.nics()) {
      Distance& distance = table_[static_cast<size_t>(a) * vertices_ + static_cast<size_t>(b)];
      if (a != b && SameCard(machine.device(a), machine.device(b))) {
        distance.type = PathType::kPix;
        distance.known = true;
      }
    }
  }
  // A GPU that has its own link to the CPU reaches the CPU's NICs over it.
  for (int gpu : machine.gpus()) {
    const int numa = machine.device(gpu).numa;
    const size_t cpu = numa < 0 ? graph.somewhere() : VertexOfNuma(numa);
    if (table_[static_cast<size_t>(gpu) * vertices_ + cpu].type != PathType::kC2c) continue;
    for (int nic : machine.nics()) {
      for (auto [a, b] : {std::pair(gpu, nic), std::pair(nic, gpu)}) {
        PathType& type = table_[static_cast<size_t>(a) * vertices_ + static_cast<size_t>(b)].type;
        if (type == PathType::kPhb) type = PathType::kP2c;
      }
    }
  }
}

Distance Distances::Between(int a, int b) const {
  WEFT_CHECK(a >= 0 && b >= 0 && static_cast<size_t>(std::max(a, b)) < devices_,
             "a=" << a << " b=" << b << " devices=" << devices_);
  return table_[static_cast<size_t>(a) * vertices_ + static_cast<size_t>(b)];
}

Distance Distances::ToNuma(int device, int numa) const {
  WEFT_CHECK(device >= 0 && static_cast<size_t>(device) < devices_ && numa >= 0 &&
                 VertexOfNuma(numa) + 2 < vertices_,
             "device=" << device << " numa=" << numa);
  return table_[static_cast<size_t>(device) * vertices_ + VertexOfNuma(numa)];
}

std::string Distances::Route(int a, int b) const {
  std::vector<std::string> names;
  const int* previous = &previous_[static_cast<size_t>(a) * vertices_];
  for (int at = previous[b]; at >= 0 && at != a; at = previous[at]) {
    names.push_back(names_[static_cast<size_t>(at)]);
  }
  std::reverse(names.begin(), names.end());
  return absl::StrJoin(names, ", ");
}

}  // namespace weft::topology
