// Ports for the subflows of one phase: such that a subflow takes the path that it should
// (Subflow::wanted), and, by local search, such that no link is loaded more than it must be.
//
// Local search lowers the worst link below its load W until `target` is reached or nothing helps:
// a subflow on it moves to a path that stays below W; else it moves to one where another subflow
// can make room, and so on, up to kDepth exchanges deep; what does not work out is undone.
#ifndef WEFT_TOPOLOGY_PATHS_PORT_SEARCH_H_
#define WEFT_TOPOLOGY_PATHS_PORT_SEARCH_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "topology/paths/path_planner.h"
#include "topology/paths/subflow.h"

namespace weft::topology {

// Ports in use, by pair of endpoints, over all phases.
class TakenPorts {
 public:
  bool Has(const Subflow& subflow, uint16_t port) const;
  void Take(const Subflow& subflow);
  void Release(const Subflow& subflow);

 private:
  absl::flat_hash_map<std::pair<Endpoint, Endpoint>, std::vector<uint16_t>> ports_;
};

class PortSearch {
 public:
  // All must outlive the search. `target`: seconds of load below which nothing is to be gained.
  PortSearch(const Tracer& tracer, const PathPlannerOptions& options, TakenPorts& taken,
             std::vector<Subflow>& subflows, double target);

  // Counts what is placed already; then gives every other subflow a port. NotFound: unreachable.
  // FailedPrecondition: no port of the range is free or gives a path.
  absl::Status Place();
  void Improve();

  const LinkLoads& loads() const { return loads_; }
  int64_t probes() const { return probes_; }
  int unmet() const { return unmet_; }

 private:
  struct Move {
    uint32_t subflow = 0;
    uint16_t port = 0;
    double worst = 0;  // on the path, once moved
    PathLinks links;
  };
  static constexpr int kDepth = 3;
  static constexpr size_t kAlternatives = 4;
  static constexpr uint64_t kStride = 7919;  // prime

  absl::Status PlaceOne(uint32_t index);
  bool PlaceAsWanted(Subflow& subflow, const FiveTuple& tuple);
  // The moves that leave the path least loaded, best first; ends early with one below `enough`.
  std::vector<Move> Alternatives(uint32_t index, double enough, bool* unknown = nullptr);
  bool Lower(LinkId link, double worst, int depth);
  void Apply(Move& move);  // leaves in `move` what undoes it
  void UndoTo(size_t size);
  void Put(uint32_t index);
  void Take(uint32_t index);
  // Prime to the range, so that all of it is met.
  uint64_t Stride() const { return Range() % kStride == 0 ? 1 : kStride; }
  uint32_t Range() const { return options_.port_last - options_.port_first + 1u; }
  uint16_t Port(const Subflow& subflow, uint32_t step);
  uint32_t Budget(const Subflow& subflow, int per_path);
  const std::vector<uint16_t>& TablePorts(const Subflow& subflow);

  const Tracer& tracer_;
  const PathPlannerOptions& options_;
  std::map<std::pair<Endpoint, Endpoint>, std::vector<uint16_t>> table_ports_;
  TakenPorts& taken_;
  std::vector<Subflow>& subflows_;
  double target_;
  LinkLoads loads_;
  std::vector<std::vector<uint32_t>> on_link_;  // subflows
  std::vector<char> locked_;                    // [subflow] part of the exchange that is tried
  std::vector<Move> journal_;
  int64_t probes_ = 0;
  int64_t probes_end_ = 0;  // of Improve()
  int unmet_ = 0, unmet_in_a_row_ = 0;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_PATHS_PORT_SEARCH_H_
