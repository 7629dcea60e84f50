// What a step's communication costs when a job's slots lie on given hosts: alpha-beta costs of each
// collective, with the load of all its groups on the fabric's cuts (cut_tree.h).
//
//   T = max over groups (latency) + max(transfer inside hosts, max over cuts of load / bandwidth)
//   step = sum over kinds of traffic of what of `times` x T nothing hides (Traffic::Exposed)
//
// The load of a cut with M cables under N flows of b bytes each is that of its fullest cable:
//   kHashed   b E[max of N balls in M bins]   as switches hash (topology/ecmp/collisions.h)
//   kPlanned  b ceil(N / M)                   with source ports chosen by the path planner
//   kEven     b N / M                         packets sprayed
// with N and b of queue pairs, where a connection has several. All groups of one kind of traffic
// run at the same time; different kinds do not. Deterministic: bytes and flows are whole numbers.
//
// Cost: Evaluate takes about 20 ns a flow and level (12,288 GPUs: milliseconds); a swap in a
// PlacementState touches only the flows of two slots.
#ifndef WEFT_TOPOLOGY_COST_COST_MODEL_H_
#define WEFT_TOPOLOGY_COST_COST_MODEL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "topology/cost/collective_flows.h"
#include "topology/cost/collision_table.h"
#include "topology/cost/cut_tree.h"
#include "topology/cost/job.h"

namespace weft::topology {

enum class Balance : uint8_t { kHashed, kPlanned, kEven };
const char* ToString(Balance balance);
absl::StatusOr<Balance> ParseBalance(absl::string_view name);  // "hashed", "planned", "even"

// What crosses one cut in one direction.
struct CutLoad {
  int group = -1;  // of the tree; -1: none
  bool up = true;
  int64_t flows = 0;
  Bytes bytes;
  absl::Duration time;  // of the fullest cable
};

struct TrafficCost {
  absl::Duration once;     // latency, then transfer
  absl::Duration exposed;  // of the step
  absl::Duration latency;
  absl::Duration transfer;
  absl::Duration floor;  // what `transfer` would be if only NICs and hosts limited it
  CutLoad worst;         // above the NICs
  std::vector<int64_t>
      flows_at;                 // [level] flows that meet there: 1 under one leaf, 2 in a pod, ...
  std::vector<Bytes> bytes_at;  // [level]
};

struct StepCost {
  absl::Duration exposed;
  std::vector<TrafficCost> traffic;  // as Job::traffic
};

inline constexpr double kPressureWeight = 0.002;

// Seconds of the step, of traffic that an order can change, and the pressure (PlacementState),
// which tells placements apart whose fullest cuts are alike.
struct PlacementScore {
  double seconds = 0, pressure = 0;
  double value() const { return seconds + kPressureWeight * pressure; }
};

// The hosts of slots: [slot] an index into the model's hosts. Indices behind the last slot are
// spare hosts.
using Placement = std::vector<int32_t>;

// Immutable; thread-safe. Refers to the tree, which must outlive it.
class CostModel {
 public:
  // `hosts`: the allocation, at least one a slot. InvalidArgument: too few hosts, one named twice,
  // a host without enough NICs; FailedPrecondition: NICs between which there is traffic, or those
  // of the same rail, cannot reach each other.
  static absl::StatusOr<CostModel> Create(const CutTree& tree, const Job& job, RankBlocks blocks,
                                          std::vector<NodeId> hosts, Balance balance);

  StepCost Evaluate(const Placement& placement) const;
  // What a search should make small.
  PlacementScore Score(const Placement& placement) const;
  // The cuts with the largest time of one kind of traffic, worst first, without NICs.
  std::vector<CutLoad> WorstCuts(const Placement& placement, size_t traffic, size_t count) const;
  // Groups (of the traffic's axes) with flows through a cut, in order.
  std::vector<int32_t> GroupsOn(const Placement& placement, size_t traffic,
                                const CutLoad& cut) const;

  const Job& job() const { return job_; }
  const CutTree& tree() const { return tree_; }
  const RankBlocks& blocks() const { return blocks_; }
  absl::Span<const NodeId> hosts() const { return hosts_; }
  int nics() const { return nics_; }
  Balance balance() const { return balance_; }
  const TrafficFlows& flows(size_t traffic) const { return flows_[traffic]; }
  // Seconds of `traffic` if only NICs limited it; and with the best NICs that any host has.
  double NicFloor(size_t traffic, const Placement& placement) const;
  double NicFloorLeast(size_t traffic) const;
  // Groups above the NICs that have a cut, and how many hosts of the allocation are in each.
  struct GroupHosts {
    int group;  // of the tree
    int dense;  // the model's own number
    int hosts;
  };
  std::vector<GroupHosts> HostsByGroup() const;
  // What `flows` flows of `bytes` together take through the cut of a group, in one direction.
  double GroupSeconds(const GroupHosts& group, int64_t flows, int64_t bytes) const {
    return CutSeconds(group.dense, flows, bytes);
  }

 private:
  friend class CutLoads;
  friend class PlacementState;
  CostModel(const CutTree& tree, Job job, RankBlocks blocks, std::vector<NodeId> hosts,
            Balance balance);
  absl::Status Check() const;
  absl::Status CheckRails() const;
  void Prepare();
  // Groups of a NIC of a host of the allocation, by level.
  const int32_t* PathOf(int32_t host, int nic) const {
    return &paths_[(static_cast<size_t>(host) * static_cast<size_t>(nics_) +
                    static_cast<size_t>(nic)) *
                   static_cast<size_t>(levels_)];
  }
  int Meeting(const int32_t* a, const int32_t* b) const {
    int level = 1;
    while (level < levels_ && a[level] != b[level]) ++level;
    return level;
  }
  // Seconds of the fullest cable under `flows` flows of `bytes` in all; `group` is dense.
  double CutSeconds(int group, int64_t flows, int64_t bytes) const;
  double NicSeconds(size_t traffic, int32_t slot, int32_t host) const;
  // No order changes the time of the others, or it is wholly hidden.
  bool Matters(size_t traffic) const;

  const CutTree& tree_;
  Job job_;
  RankBlocks blocks_;
  std::vector<NodeId> hosts_;
  Balance balance_;
  int nics_ = 0;
  int levels_ = 0;
  std::vector<TrafficFlows> flows_;
  // Groups above the NICs are numbered densely here, from 0.
  std::vector<int> upper_;          // -> the tree's number
  std::vector<int32_t> paths_;      // [host][nic][level], dense; level 0 unused
  std::vector<double> alpha_;       // [level] seconds
  std::vector<int32_t> nic_kinds_;  // a host of each kind of NICs
  bool uniform_nics() const { return nic_kinds_.size() == 1; }
  std::vector<std::vector<int64_t>> nic_bytes_, nic_flows_;    // [traffic][(slot, nic, direction)]
  std::vector<std::shared_ptr<const CollisionTable>> tables_;  // [dense group]
  std::shared_ptr<const CollisionTable> port_table_;           // of NICs with several ports
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_COST_MODEL_H_
