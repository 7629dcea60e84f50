// Sprayed transfers use every link of every shortest path: thousands across a large fabric, and all
// transfers between two leaves the same ones. Links that no transfer has told apart yet, as each
// used all of them alike or none, are one resource of the solver, a cell; a transfer that tells
// them apart splits it. Exact, and a path is a handful of cells.
//
// With one path a flow every link is a cell of its own from the start.
#ifndef WEFT_TOPOLOGY_SIM_FLOW_SPRAY_H_
#define WEFT_TOPOLOGY_SIM_FLOW_SPRAY_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/flow/fluid.h"
#include "topology/sim/flow/paths.h"

namespace weft::topology {

class LinkCells {
 public:
  // `capacities` by link. Links of hosts are cells of their own; those between switches are merged
  // where `merge` says so and their capacities are the same.
  LinkCells(const Fabric& fabric, absl::Span<const double> capacities, bool merge);

  // By cell, as they are before the first split.
  const std::vector<double>& capacities() const { return capacities_; }
  MaxMin::Resource cell(LinkId link) const { return cell_[link.index()]; }
  uint64_t splits() const { return splits_; }

  // From links to cells.
  void Rewrite(std::vector<MaxMin::Use>& uses, Fluid& fluid);
  // Makes `link` a cell of its own.
  MaxMin::Resource Isolate(LinkId link, Fluid& fluid);

 private:
  MaxMin::Resource Split(MaxMin::Resource cell, absl::Span<const MaxMin::Use> links, Fluid& fluid);

  bool merge_;
  std::vector<double> capacities_;
  std::vector<MaxMin::Resource> cell_;  // [link]
  std::vector<uint32_t> size_;          // [cell] links
  uint64_t splits_ = 0;
  std::vector<MaxMin::Use> sorted_;
};

// Paths of sprayed transfers as cells, remembered by pair of leaves.
class SprayPaths {
 public:
  SprayPaths(const Fabric& fabric, FlowPaths& paths, LinkCells& cells)
      : fabric_(fabric), paths_(paths), cells_(cells) {}

  void Find(Endpoint source, Endpoint target, Fluid& fluid, FlowPath& path);
  void Forget() { known_.clear(); }  // after routes or bandwidths changed

 private:
  // The two leaves; and what of the hosts' own links counts for the latency.
  using Key = std::tuple<int32_t, int32_t, double, double, absl::Duration, absl::Duration>;
  struct Known {
    std::vector<MaxMin::Use> links;  // between the leaves
    std::vector<MaxMin::Use> cells;  // the same, when `splits` was
    uint64_t splits = 0;
    double propagation = 0, per_byte = 0;
  };

  const Fabric& fabric_;
  FlowPaths& paths_;
  LinkCells& cells_;
  absl::flat_hash_map<Key, Known> known_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_FLOW_SPRAY_H_
