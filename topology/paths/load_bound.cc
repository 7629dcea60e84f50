#include "topology/paths/load_bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/units.h"

namespace weft::topology {
namespace {

// A NIC, the switches that a NIC hangs on, or the switches of a pod (of one plane of it).
struct Region {
  std::string name;
  std::vector<NodeId> switches;  // in order; empty: a NIC
  std::vector<LinkId> out;
  std::vector<double> leaving, entering;  // bytes of each subflow
};

class Bounder {
 public:
  explicit Bounder(const Fabric& fabric) : fabric_(fabric) {}

  void Add(const Subflow& subflow) {
    if (subflow.source.host == subflow.target.host) return;
    Count(subflow.source, subflow.target, subflow.bytes, &Region::leaving);
    Count(subflow.target, subflow.source, subflow.bytes, &Region::entering);
  }

  LoadBound Finish() {
    LoadBound out;
    for (auto& [key, region] : regions_) {
      Judge(region, region.leaving, "out of", out);
      Judge(region, region.entering, "into", out);
      if (region.switches.empty()) continue;
      for (LinkId link : region.out) {
        if (!region.leaving.empty()) out.links.push_back(link);
        if (!region.entering.empty()) out.links.push_back(fabric_.link(link).reverse);
      }
    }
    std::sort(out.links.begin(), out.links.end());
    out.links.erase(std::unique(out.links.begin(), out.links.end()), out.links.end());
    return out;
  }

 private:
  using Key = std::vector<int32_t>;

  void Count(Endpoint near, Endpoint far, double bytes, std::vector<double> Region::*list) {
    (NicRegion(near).*list).push_back(bytes);
    std::vector<NodeId> far_switches = Attached(far);
    for (Region* region : {&LeafRegion(near), PodRegion(near)}) {
      if (region == nullptr || region->switches.empty()) continue;
      bool apart = std::none_of(far_switches.begin(), far_switches.end(), [&](NodeId node) {
        return std::binary_search(region->switches.begin(), region->switches.end(), node);
      });
      if (apart) (region->*list).push_back(bytes);
    }
  }

  std::vector<NodeId> Attached(Endpoint endpoint) const {
    std::vector<NodeId> out;
    for (LinkId link : fabric_.Ports(endpoint)) {
      if (fabric_.link(link).up) out.push_back(fabric_.link(link).target);
    }
    std::sort(out.begin(), out.end());
    out.erase(std::unique(out.begin(), out.end()), out.end());
    return out;
  }

  Region& NicRegion(Endpoint endpoint) {
    auto [found, added] = regions_.try_emplace(Key{0, endpoint.host.value(), endpoint.nic});
    if (added) {
      found->second.name = absl::StrCat(fabric_.node(endpoint.host).name, " NIC ", endpoint.nic);
      for (LinkId link : fabric_.Ports(endpoint)) {
        if (fabric_.link(link).up) found->second.out.push_back(link);
      }
    }
    return found->second;
  }

  Region& LeafRegion(Endpoint endpoint) {
    std::vector<NodeId> switches = Attached(endpoint);
    Key key{1};
    for (NodeId node : switches) key.push_back(node.value());
    auto [found, added] = regions_.try_emplace(std::move(key));
    if (added) {
      for (NodeId node : switches) {
        absl::StrAppend(&found->second.name, found->second.name.empty() ? "" : "+",
                        fabric_.node(node).name);
      }
      SetSwitches(found->second, std::move(switches));
    }
    return found->second;
  }

  // Null: the NIC's switches are in no pod, or in several.
  Region* PodRegion(Endpoint endpoint) {
    std::vector<NodeId> attached = Attached(endpoint);
    if (attached.empty()) return nullptr;
    int pod = fabric_.node(attached[0]).pod, plane = fabric_.node(attached[0]).plane;
    for (NodeId node : attached) {
      if (fabric_.node(node).pod != pod) return nullptr;
      if (fabric_.node(node).plane != plane) plane = -2;  // any
    }
    if (pod < 0) return nullptr;
    auto [found, added] = regions_.try_emplace(Key{2, pod, plane});
    if (added) {
      std::vector<NodeId> switches;
      for (NodeId node : fabric_.switches()) {
        const FabricNode& it = fabric_.node(node);
        if (it.pod == pod && (plane == -2 || it.plane == plane)) switches.push_back(node);
      }
      found->second.name = absl::StrCat("pod ", pod);
      if (plane >= 0) absl::StrAppend(&found->second.name, " plane ", plane);
      SetSwitches(found->second, std::move(switches));
    }
    return &found->second;
  }

  void SetSwitches(Region& region, std::vector<NodeId> switches) {
    std::sort(switches.begin(), switches.end());
    for (NodeId node : switches) {
      for (LinkId id : fabric_.LinksFrom(node)) {
        const FabricLink& link = fabric_.link(id);
        bool outward = fabric_.node(link.target).kind == NodeKind::kSwitch &&
                       !std::binary_search(switches.begin(), switches.end(), link.target);
        if (link.up && outward) region.out.push_back(id);
      }
    }
    region.switches = std::move(switches);
  }

  // The least time in which the links out of the region carry `count` subflows, each of `bytes` at
  // least and over one of them: each carries a whole number.
  double SecondsOfWhole(const Region& region, size_t count, double bytes) const {
    double low = 0, high = 0;
    for (LinkId link : region.out) {
      high = std::max(high, fabric_.link(link).bandwidth.bytes_per_second());
    }
    high = static_cast<double>(count) * bytes / high;
    constexpr int kHalvings = 50;
    constexpr double kRounding = 1 + 1e-9;
    for (int i = 0; i < kHalvings; ++i) {
      const double middle = (low + high) / 2;
      double carried = 0;
      for (LinkId link : region.out) {
        const double most = fabric_.link(link).bandwidth.bytes_per_second() * middle / bytes;
        carried += std::floor(most * kRounding);
      }
      (carried < static_cast<double>(count) ? low : high) = middle;
    }
    return low;
  }

  void Judge(const Region& region, std::vector<double>& bytes, absl::string_view direction,
             LoadBound& out) {
    size_t n = region.out.size();
    if (bytes.empty() || n == 0) return;
    double total = 0, bandwidth = 0, fastest = 0, slowest = 0;
    for (double one : bytes) total += one;
    for (LinkId link : region.out) {
      double own = fabric_.link(link).bandwidth.bytes_per_second();
      bandwidth += own;
      fastest = std::max(fastest, own);
      slowest = slowest == 0 ? own : std::min(slowest, own);
    }
    out.fluid = std::max(out.fluid, total / bandwidth);
    std::sort(bytes.begin(), bytes.end(), std::greater<>());
    double seconds = total / bandwidth, sum = 0;
    std::vector<double> prefix{0};
    for (double one : bytes) prefix.push_back(sum += one);
    for (size_t m = 0; m * n + 1 <= bytes.size(); ++m) {
      double lightest = prefix[m * n + 1] - prefix[m * n - m];
      seconds = std::max(seconds, lightest / fastest);
    }
    for (size_t k = 1; k <= bytes.size() && slowest < fastest; ++k) {
      // Only the last of equal ones says something new.
      if (k < bytes.size() && bytes[k] == bytes[k - 1]) continue;
      seconds = std::max(seconds, SecondsOfWhole(region, k, bytes[k - 1]));
    }
    // Sums that are equal but for rounding must not make the reason depend on their order.
    if (seconds <= out.seconds * (1 + 1e-12)) return;
    out.seconds = seconds;
    out.reason =
        absl::StrFormat("%d subflows, %s in all, %s %s over %d links", bytes.size(),
                        ToString(Bytes(static_cast<int64_t>(total))), direction, region.name, n);
  }

  const Fabric& fabric_;
  std::map<Key, Region> regions_;
};

}  // namespace

LoadBound BoundLoad(const Fabric& fabric, absl::Span<const Subflow> subflows) {
  Bounder bounder(fabric);
  for (const Subflow& subflow : subflows) bounder.Add(subflow);
  return bounder.Finish();
}

}  // namespace weft::topology
