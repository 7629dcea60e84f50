// A placement that changes by swaps, with its cost kept up to date: what local search walks on.
//
// A swap costs the flows of two slots times the levels of the fabric, and a logarithm for the
// maxima. Exact: after any number of swaps Seconds() equals CostModel::Evaluate of the placement
// to rounding. Traffic that no order changes is a constant. Not thread-safe.
#ifndef WEFT_TOPOLOGY_COST_PLACEMENT_STATE_H_
#define WEFT_TOPOLOGY_COST_PLACEMENT_STATE_H_

#include <cstdint>
#include <vector>

#include "topology/cost/cost_model.h"
#include "topology/cost/cut_loads.h"

namespace weft::topology {

// Values with their maximum; a change costs log2(size).
class MaxTree {
 public:
  explicit MaxTree(size_t size);
  void Set(size_t i, double value);
  double Get(size_t i) const { return tree_[leaves_ + i]; }
  double Max() const { return tree_[1]; }
  size_t Where() const;  // of the maximum, the first

 private:
  size_t leaves_ = 1;
  std::vector<double> tree_;
};

class PlacementState {
 public:
  PlacementState(const CostModel& model, Placement placement);

  // Exchanges what lies at two positions: two slots, or a slot and a spare host.
  void Swap(int32_t a, int32_t b);

  const Placement& placement() const { return placement_; }
  // Exposed communication of a step, in seconds.
  double Seconds() const;
  // Breaks ties where the maximum does not see a change for the better: how full the cuts are, in
  // seconds of the step.
  double Pressure() const;
  // What a search makes small: as CostModel::Score, but for a constant.
  double Score() const { return Seconds() + kPressureWeight * Pressure(); }
  int64_t updates() const { return updates_; }  // flows moved so far, for a budget

  // The fullest cut, of the traffic whose time has most above its floor. -1: nothing is above.
  struct Bottleneck {
    int traffic = -1;
    size_t cut = 0;
  };
  Bottleneck WorstCut() const;
  // Slots whose flows use the cut: on the side of its group, and on the far side.
  void SlotsOn(Bottleneck where, std::vector<int32_t>& inner, std::vector<int32_t>& outer) const;

 private:
  struct Followed {
    size_t traffic;
    CutLoads loads;
    MaxTree cut_seconds, group_latency, nic_seconds;
    double inside = 0, inside_latency = 0;
    double floor = 0;     // of transfer, in the placement at the start
    double pressure = 0;  // sum over cuts of seconds^2
    std::vector<std::vector<int32_t>> flows_of_slot;
  };
  double OnceOf(const Followed& one) const;
  double StepSeconds(const Followed& one) const;
  void Move(Followed& one, int32_t a, int32_t b, int sign);
  void Refresh(Followed& one);

  const CostModel& model_;
  Placement placement_;
  std::vector<Followed> followed_;
  std::vector<size_t> touched_cuts_;
  std::vector<int32_t> touched_groups_;
  std::vector<uint8_t> is_touched_cut_, is_touched_group_;
  int64_t updates_ = 0;
  double constant_ = 0;  // seconds of traffic that is not followed
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_PLACEMENT_STATE_H_
