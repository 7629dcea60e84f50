// The cuts of a fabric under the flows of one kind of traffic: counted up and down, flow by flow.
// Behind CostModel and PlacementState.
#ifndef WEFT_TOPOLOGY_COST_CUT_LOADS_H_
#define WEFT_TOPOLOGY_COST_CUT_LOADS_H_

#include <cstdint>
#include <vector>

#include "topology/cost/cost_model.h"

namespace weft::topology {

class CutLoads {
 public:
  // Refers to `model`, which must outlive it.
  CutLoads(const CostModel& model, size_t traffic);

  // `sign` 1 puts a flow there, -1 takes it away. Calls touched(cut) for each cut that changes.
  template <typename Touched>
  void Add(const SlotFlow& flow, const Placement& placement, int sign, Touched touched) {
    const int32_t* source =
        model_.PathOf(placement[static_cast<size_t>(flow.source)], flow.source_nic);
    const int32_t* target =
        model_.PathOf(placement[static_cast<size_t>(flow.target)], flow.target_nic);
    int meeting = model_.Meeting(source, target);
    for (int level = 1; level < meeting; ++level) {
      for (size_t cut :
           {2 * static_cast<size_t>(source[level]), 2 * static_cast<size_t>(target[level]) + 1}) {
        flows_[cut] += sign;
        bytes_[cut] += sign * flow.bytes;
        touched(cut);
      }
    }
    at_level_[static_cast<size_t>(flow.group) * levels_ + static_cast<size_t>(meeting)] += sign;
    bytes_at_[static_cast<size_t>(meeting)] += sign * flow.bytes;
  }
  void Add(const SlotFlow& flow, const Placement& placement, int sign) {
    Add(flow, placement, sign, [](size_t) {});
  }

  // A cut is 2 * dense group + (1 if down).
  size_t cuts() const { return flows_.size(); }
  double Seconds(size_t cut) const {
    return model_.CutSeconds(static_cast<int>(cut / 2), flows_[cut], bytes_[cut]);
  }
  int64_t flows(size_t cut) const { return flows_[cut]; }
  // Latency of the network, in the group that has most.
  double Latency() const;
  double LatencyOf(size_t group) const;
  // The cuts with any load, worst first; equal ones by number.
  std::vector<CutLoad> Largest(size_t count) const;
  std::vector<int64_t> flows_at() const;
  std::vector<Bytes> bytes_at() const;

 private:
  const CostModel& model_;
  const TrafficFlows& traffic_;
  const size_t levels_;
  std::vector<int64_t> flows_, bytes_;  // [cut]
  std::vector<int32_t> at_level_;       // [group][level] flows that meet there
  std::vector<int64_t> bytes_at_;       // [level]
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_CUT_LOADS_H_
