// What one kind of traffic puts on the network, as flows between slots. A slot is a host's worth of
// ranks, before it is known which host that will be.
//
// How each collective moves S bytes among n ranks in m slots (formulas: Thakur, Rabenseifner and
// Gropp 2005; Sanders, Speck and Traeff 2009 for the two trees; NCCL's way through hosts):
//   ring          the ring visits a slot's ranks, then goes on to the next slot by as many NICs as
//                 both have ranks of the group: each hop carries 2 (n-1)/n S (all-reduce),
//                 (n-1)/n S
//   hierarchical  inside a slot with g ranks, then g rings over slots of S/g each, inside again
//   tree          over slots: two binary trees (topology/job/binary_trees.h), each with half of S
//                 up and down each edge
//   all-to-all    S/n from each rank to each; between slots on the target's rail (NCCL's PXN)
//   send_recv     S from each rank to the next of its group
#ifndef WEFT_TOPOLOGY_COST_COLLECTIVE_FLOWS_H_
#define WEFT_TOPOLOGY_COST_COLLECTIVE_FLOWS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/cost/job.h"

namespace weft::topology {

// Which ranks share a host. Every slot has `gpus` ranks, one a GPU.
struct RankBlocks {
  int slots = 0;
  int gpus = 0;
  std::vector<int32_t> slot_of, gpu_of;  // [rank]
  std::vector<int32_t> rank_at;          // [slot * gpus + gpu]

  // Ranks 0..gpus-1 in slot 0, and so on, as launchers place them. `world` is a multiple of `gpus`.
  static RankBlocks Contiguous(int world, int gpus);
};

// The NICs of a host's GPU, where GPUs and NICs are shared out evenly in order.
struct NicsOfGpu {
  int first;
  int count;
};
NicsOfGpu NicsOf(int gpu, int gpus, int nics);

struct SlotFlow {
  int32_t source, target;  // slots, different
  int16_t source_nic, target_nic;
  int16_t source_gpu, target_gpu;
  int64_t bytes;
  int32_t group;
};

// The flows of one run of the traffic by all groups.
struct TrafficFlows {
  std::vector<SlotFlow> flows;
  std::vector<int32_t> flows_of_group;
  // Sequential messages: `network_steps` times the mean latency between the slots of a group, and
  // what is the same in every order.
  double network_steps = 0;
  absl::Duration inside_latency;
  // Transfer inside hosts: the larger of it and the network's counts; with `inside_adds` their sum.
  absl::Duration inside;
  bool inside_adds = false;
};

// `nics` of a host.
TrafficFlows FlowsOf(const Traffic& traffic, const Mesh& mesh, const NodeShape& node,
                     const RankBlocks& blocks, int nics);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_COLLECTIVE_FLOWS_H_
