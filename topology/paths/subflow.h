// What the parts of the path planner hand to each other.
#ifndef WEFT_TOPOLOGY_PATHS_SUBFLOW_H_
#define WEFT_TOPOLOGY_PATHS_SUBFLOW_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"
#include "topology/ecmp/fabric_hashes.h"
#include "topology/fabric/fabric.h"
#include "topology/fabric/routes.h"

namespace weft::topology {

using PathLinks = absl::InlinedVector<LinkId, 8>;

struct Subflow {
  uint32_t flow = 0, subflow = 0;
  Endpoint source, target;
  double bytes = 0;
  uint16_t target_port = 0;  // 0: the tracer's
  uint16_t port = 0;
  bool placed = false;  // `port` and `links` are set, and counted in LinkLoads
  bool open = false;    // no port is known to take any way: it has none, and counts for nothing
  // The switches that the path is to visit behind the first one; NodeId(): any.
  std::array<NodeId, 2> wanted{};
  PathLinks links;
};

// Seconds of transmission of each link in one phase.
class LinkLoads {
 public:
  explicit LinkLoads(const Fabric& fabric)
      : fabric_(&fabric),
        load_(static_cast<size_t>(fabric.links())),
        fullest_((load_.size() + kBlock - 1) / kBlock, kUnknown) {}

  double Seconds(LinkId link, double bytes) const {
    return bytes / fabric_->link(link).bandwidth.bytes_per_second();
  }
  double operator[](LinkId link) const { return load_[link.index()]; }
  void Add(const PathLinks& links, double bytes) {
    for (LinkId link : links) Change(link, Seconds(link, bytes));
  }
  void Remove(const PathLinks& links, double bytes) {
    for (LinkId link : links) Change(link, -Seconds(link, bytes));
  }
  // The highest load on the path once `bytes` more go over it.
  double WorstWith(const PathLinks& links, double bytes) const {
    double worst = 0;
    for (LinkId link : links) worst = std::max(worst, load_[link.index()] + Seconds(link, bytes));
    return worst;
  }
  absl::Span<const double> all() const { return load_; }
  // The link with the highest load, the first of equal ones. Looks only at links near those that
  // have changed since the last call.
  LinkId Fullest() {
    uint32_t out = 0;
    for (size_t block = 0; block < fullest_.size(); ++block) {
      uint32_t& fullest = fullest_[block];
      if (fullest == kUnknown) {
        const auto begin = load_.begin() + static_cast<ptrdiff_t>(block * kBlock);
        const auto end =
            load_.begin() + static_cast<ptrdiff_t>(std::min((block + 1) * kBlock, load_.size()));
        fullest = static_cast<uint32_t>(std::max_element(begin, end) - load_.begin());
      }
      if (load_[fullest] > load_[out]) out = fullest;
    }
    return LinkId(static_cast<int32_t>(out));
  }

 private:
  static constexpr size_t kBlock = 256;      // links of which the fullest is remembered
  static constexpr uint32_t kUnknown = ~0u;  // since one of them has changed
  void Change(LinkId link, double seconds) {
    load_[link.index()] += seconds;
    fullest_[link.index() / kBlock] = kUnknown;
  }

  const Fabric* fabric_;
  std::vector<double> load_;
  std::vector<uint32_t> fullest_;  // by block, the number of a link
};

// Paths that ports give, and those of them that are taken.
class Tracer {
 public:
  Tracer(const Routes& routes, const FabricHashes& hashes, uint16_t target_port, uint8_t protocol)
      : routes_(routes), hashes_(hashes), target_port_(target_port), protocol_(protocol) {}

  FiveTuple Tuple(const Subflow& subflow) const {
    uint16_t target_port = subflow.target_port != 0 ? subflow.target_port : target_port_;
    return hashes_.Tuple(subflow.source, subflow.target, 0, target_port, protocol_);
  }
  // False: unreachable, or, with `wanted`, the path visits other switches, or, with `unknown`, a
  // switch may do otherwise than predicted, which is told there.
  bool Trace(const Subflow& subflow, const FiveTuple& tuple, bool wanted, PathLinks& links,
             bool* unknown = nullptr) const {
    links.clear();
    absl::Span<const LinkId> next = routes_.First(subflow.source, subflow.target);
    NodeId at = subflow.source.host;
    size_t hop = 0;
    while (at != subflow.target.host) {
      if (next.empty()) return false;
      if (unknown != nullptr && next.size() > 1 && !hashes_.Knows(at, tuple, next.size())) {
        *unknown = true;
        return false;
      }
      LinkId link = next[next.size() == 1 ? 0 : hashes_.Choose(at, tuple, next)];
      links.push_back(link);
      at = routes_.fabric().link(link).target;
      if (wanted && hop >= 1 && hop <= 2 && subflow.wanted[hop - 1] != NodeId() &&
          subflow.wanted[hop - 1] != at) {
        return false;
      }
      ++hop;
      if (at != subflow.target.host) next = routes_.Next(at, subflow.target);
    }
    return true;
  }

  bool KnowsAll() const { return hashes_.KnowsAll(); }
  // The source ports that are known of such a flow, where tables of switches know single ones.
  std::vector<uint16_t> TablePorts(const Subflow& subflow) const {
    return hashes_.TablePorts(Tuple(subflow));
  }

  const Routes& routes() const { return routes_; }
  const Fabric& fabric() const { return routes_.fabric(); }

 private:
  const Routes& routes_;
  const FabricHashes& hashes_;
  uint16_t target_port_;
  uint8_t protocol_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PATHS_SUBFLOW_H_
