#include "topology/fabric/clos.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {
namespace {

absl::Status CheckRange(absl::string_view name, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " = ", value, ": must be from ", least, " to ", most));
}

absl::Status CheckClos(const ClosSpec& spec) {
  WEFT_RETURN_IF_ERROR(CheckRange("hosts_per_group", spec.hosts_per_group, 1, kMaxNodes));
  WEFT_RETURN_IF_ERROR(CheckRange("groups", spec.groups, 1, kMaxNodes));
  WEFT_RETURN_IF_ERROR(CheckRange("pods", spec.pods, 1, kMaxNodes));
  WEFT_RETURN_IF_ERROR(CheckRange("nics", spec.nics, 1, kMaxNics));
  WEFT_RETURN_IF_ERROR(CheckRange("ports", spec.ports, 1, 8));
  WEFT_RETURN_IF_ERROR(CheckRange("spines", spec.spines, 0, kMaxNodes));
  WEFT_RETURN_IF_ERROR(CheckRange("cores", spec.cores, 0, kMaxNodes));
  for (const TierSpec* tier : {&spec.leaf, &spec.spine, &spec.core}) {
    WEFT_RETURN_IF_ERROR(CheckRange("cables", tier->cables, 1, 64));
  }
  WEFT_RETURN_IF_ERROR(
      CheckRange("hosts", spec.hosts, 0, std::min<int64_t>(HostsOf(spec), kMaxNodes)));
  if (spec.cores == 0 && spec.pods > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("pods = ", spec.pods, ": several pods need cores above them"));
  }
  if (spec.spines == 0 && (spec.cores > 0 || spec.groups > 1)) {
    return absl::InvalidArgumentError("spines = 0: only a single group of hosts can do without");
  }
  if (spec.cores > 0 && spec.cores % spec.spines != 0 && spec.spines % spec.cores != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cores = ", spec.cores,
                     ": must divide, or be a multiple of, spines = ", spec.spines, " of a pod"));
  }
  if (spec.planes == Planes::kByRail && !spec.rail_leaves) {
    return absl::InvalidArgumentError("planes by rail need a leaf for each rail");
  }
  return absl::OkStatus();
}

// What there is to build, once pods and groups without hosts are gone.
struct Shape {
  int64_t hosts, groups, groups_per_pod, pods;
  int64_t leaf_rails, leaves_per_group, planes;
  int64_t leaves, spines, cores;
};

Shape ShapeOf(const ClosSpec& spec) {
  Shape shape{};
  shape.hosts = spec.hosts > 0 ? spec.hosts : HostsOf(spec);
  shape.groups = (shape.hosts + spec.hosts_per_group - 1) / spec.hosts_per_group;
  shape.groups_per_pod = std::min<int64_t>(spec.groups, shape.groups);
  shape.pods = (shape.groups + spec.groups - 1) / spec.groups;
  shape.leaf_rails = spec.rail_leaves ? spec.nics : 1;
  shape.leaves_per_group = shape.leaf_rails * spec.ports;
  shape.planes = spec.planes == Planes::kByPort   ? spec.ports
                 : spec.planes == Planes::kByRail ? spec.nics
                                                  : 1;
  shape.leaves = shape.groups * shape.leaves_per_group;
  shape.spines = shape.pods * shape.planes * spec.spines;
  shape.cores = shape.planes * spec.cores;
  return shape;
}

absl::Status CheckSize(const ClosSpec& spec, const Shape& shape) {
  // In double: the products of numbers within their ranges may not fit 64 bits.
  auto product = [](auto... factors) { return (1.0 * ... * static_cast<double>(factors)); };
  double nodes = product(shape.hosts) + product(shape.leaves) +
                 product(shape.pods, shape.planes, spec.spines) + product(shape.planes, spec.cores);
  if (nodes > kMaxNodes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("this fabric has ", nodes, " nodes; at most ", kMaxNodes, " are allowed"));
  }
  double cables =
      product(shape.hosts, spec.nics, spec.ports, spec.leaf.cables) +
      product(shape.leaves, spec.spines, spec.spine.cables) +
      product(shape.spines, std::max<int64_t>(1, spec.spines == 0 ? 0 : spec.cores / spec.spines),
              spec.cores == 0 ? 0 : spec.core.cables);
  if (2 * cables > kMaxLinks) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "this fabric has ", cables, " cables; at most ", kMaxLinks / 2, " are allowed"));
  }
  return absl::OkStatus();
}

class ClosBuilder {
 public:
  explicit ClosBuilder(const ClosSpec& spec) : spec_(spec), shape_(ShapeOf(spec)) {}

  absl::StatusOr<Fabric> Build() {
    WEFT_RETURN_IF_ERROR(CheckSize(spec_, shape_));
    WEFT_RETURN_IF_ERROR(AddNodes());
    WEFT_RETURN_IF_ERROR(ConnectHosts());
    WEFT_RETURN_IF_ERROR(ConnectLeaves());
    WEFT_RETURN_IF_ERROR(ConnectSpines());
    return std::move(builder_).Build();
  }

 private:
  bool has_pods() const { return spec_.cores > 0; }
  int PodOfGroup(int64_t group) const { return static_cast<int>(group / spec_.groups); }
  // A leaf's number is group * leaves_per_group + rail * ports + port.
  int PlaneOfLeaf(int64_t leaf) const {
    int64_t within = leaf % shape_.leaves_per_group;
    switch (spec_.planes) {
      case Planes::kOne:
        return 0;
      case Planes::kByPort:
        return static_cast<int>(within % spec_.ports);
      case Planes::kByRail:
        return static_cast<int>(within / spec_.ports);
    }
    return 0;
  }

  NodeId Host(int64_t i) const { return NodeId(static_cast<int>(i)); }
  NodeId Leaf(int64_t i) const { return NodeId(static_cast<int>(shape_.hosts + i)); }
  NodeId Spine(int64_t i) const { return Leaf(shape_.leaves + i); }
  NodeId Core(int64_t i) const { return Spine(shape_.spines + i); }

  absl::Status Add(absl::string_view prefix, int64_t number, int tier, int pod, int plane,
                   const TierSpec& numbers) {
    FabricNode node;
    node.name = absl::StrCat(prefix, number);
    node.kind = tier == 0 ? NodeKind::kHost : NodeKind::kSwitch;
    node.tier = tier;
    node.pod = has_pods() ? pod : -1;
    node.plane = shape_.planes > 1 ? plane : -1;
    if (tier > 0) {
      node.latency = numbers.latency;
      node.buffer = numbers.buffer;
    }
    return builder_.Add(std::move(node)).status();
  }

  absl::Status AddNodes() {
    for (int64_t i = 0; i < shape_.hosts; ++i) {
      WEFT_RETURN_IF_ERROR(Add("h", i, 0, PodOfGroup(i / spec_.hosts_per_group), -1, {}));
    }
    for (int64_t i = 0; i < shape_.leaves; ++i) {
      WEFT_RETURN_IF_ERROR(
          Add("leaf", i, 1, PodOfGroup(i / shape_.leaves_per_group), PlaneOfLeaf(i), spec_.leaf));
    }
    for (int64_t i = 0; i < shape_.spines; ++i) {
      int64_t pod = i / (shape_.planes * spec_.spines);
      int64_t plane = i / spec_.spines % shape_.planes;
      WEFT_RETURN_IF_ERROR(
          Add("spine", i, 2, static_cast<int>(pod), static_cast<int>(plane), spec_.spine));
    }
    for (int64_t i = 0; i < shape_.cores; ++i) {
      WEFT_RETURN_IF_ERROR(Add("core", i, 3, -1, static_cast<int>(i / spec_.cores), spec_.core));
    }
    return absl::OkStatus();
  }

  absl::Status Connect(NodeId a, NodeId b, const TierSpec& tier, int nic) {
    for (int i = 0; i < tier.cables; ++i) {
      WEFT_RETURN_IF_ERROR(
          builder_
              .Connect(a, b, {tier.bandwidth, tier.delay, tier.buffer_up, nic, tier.buffer_down})
              .status());
    }
    return absl::OkStatus();
  }

  absl::Status ConnectHosts() {
    for (int64_t host = 0; host < shape_.hosts; ++host) {
      int64_t first_leaf = host / spec_.hosts_per_group * shape_.leaves_per_group;
      for (int nic = 0; nic < spec_.nics; ++nic) {
        int64_t rail = spec_.rail_leaves ? nic : 0;
        for (int port = 0; port < spec_.ports; ++port) {
          WEFT_RETURN_IF_ERROR(
              Connect(Host(host), Leaf(first_leaf + rail * spec_.ports + port), spec_.leaf, nic));
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status ConnectLeaves() {
    for (int64_t leaf = 0; leaf < shape_.leaves; ++leaf) {
      int64_t pod = PodOfGroup(leaf / shape_.leaves_per_group);
      int64_t first = (pod * shape_.planes + PlaneOfLeaf(leaf)) * spec_.spines;
      for (int64_t i = 0; i < spec_.spines; ++i) {
        WEFT_RETURN_IF_ERROR(Connect(Leaf(leaf), Spine(first + i), spec_.spine, -1));
      }
    }
    return absl::OkStatus();
  }

  absl::Status ConnectSpines() {
    if (spec_.cores == 0) return absl::OkStatus();
    for (int64_t spine = 0; spine < shape_.spines; ++spine) {
      int64_t plane = spine / spec_.spines % shape_.planes;
      int64_t within = spine % spec_.spines;
      for (int64_t core = within % spec_.cores; core < spec_.cores; core += spec_.spines) {
        WEFT_RETURN_IF_ERROR(
            Connect(Spine(spine), Core(plane * spec_.cores + core), spec_.core, -1));
      }
    }
    return absl::OkStatus();
  }

  const ClosSpec& spec_;
  const Shape shape_;
  FabricBuilder builder_;
};

}  // namespace

int64_t HostsOf(const ClosSpec& spec) {
  // Each factor is at most 2^18: the product may not fit, and is then far beyond what is allowed.
  double hosts = 1.0 * spec.pods * spec.groups * spec.hosts_per_group;
  return hosts > 1e15 ? int64_t{1'000'000'000'000'000} : static_cast<int64_t>(hosts);
}

absl::StatusOr<Fabric> BuildClos(const ClosSpec& spec) {
  WEFT_RETURN_IF_ERROR(CheckClos(spec));
  return ClosBuilder(spec).Build();
}

absl::StatusOr<ClosSpec> MegaScaleClos(int hosts) {
  constexpr int kHostsOfTorSet = 64;  // 32 ports of 400G down, split in two
  constexpr int kRails = 8;
  constexpr int kUp = 32;           // of a ToR and of an aggregation switch
  constexpr int kTorSetsOfPod = 4;  // 32 ports down of an aggregation switch / 8 ToRs
  constexpr int kPorts = 64;        // of a core switch
  constexpr int kMaxHosts = kPorts * kTorSetsOfPod * kHostsOfTorSet;
  WEFT_RETURN_IF_ERROR(CheckRange("hosts", hosts, 1, kMaxHosts));
  ClosSpec spec;
  spec.hosts = hosts;
  spec.hosts_per_group = kHostsOfTorSet;
  spec.groups = kTorSetsOfPod;
  spec.pods = (hosts + kTorSetsOfPod * kHostsOfTorSet - 1) / (kTorSetsOfPod * kHostsOfTorSet);
  spec.nics = kRails;
  spec.rail_leaves = true;
  spec.spines = kUp;
  if (spec.pods > 1) {
    // As many parallel cables to a core as its ports allow: a power of two, so that it divides 32.
    int cables = kUp;
    while (cables * spec.pods > kPorts) cables /= 2;
    spec.core.cables = cables;
    spec.cores = kUp * (kUp / cables);
  }
  spec.leaf.bandwidth = Bandwidth::GigabitsPerSecond(200);
  return spec;
}

}  // namespace weft::topology
