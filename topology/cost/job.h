// A training job as the network sees it: its mesh of ranks, and what each kind of group sends in a
// step. Ranks of a group are in order: neighbours in a ring or a tree are neighbours in that order.
//
// Values; thread-safe as such. Read from files by job_file.h.
#ifndef WEFT_TOPOLOGY_COST_JOB_H_
#define WEFT_TOPOLOGY_COST_JOB_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "topology/job/collective_kind.h"
#include "topology/job/mesh.h"

namespace weft::topology {

enum class GroupAlgorithm : uint8_t {
  kRing,          // one flat ring a NIC, through all GPUs of a host before the next host
  kTree,          // double binary tree over hosts, chain inside; all-reduce only
  kHierarchical,  // inside the hosts, then a ring per GPU of a host, then inside again
};

const char* ToString(GroupAlgorithm algorithm);
// Parses the kinds that traffic may have.
absl::StatusOr<CollectiveKind> ParseTrafficKind(absl::string_view name);
absl::StatusOr<GroupAlgorithm> ParseGroupAlgorithm(absl::string_view name);

// One kind of communication: every group of `axes` does it, all groups at the same time.
struct Traffic {
  std::string name;  // "gradients"
  AxisSet axes;
  // all_reduce, reduce_scatter, all_gather, all_to_all or send_recv
  CollectiveKind collective = CollectiveKind::kAllReduce;
  GroupAlgorithm algorithm = GroupAlgorithm::kRing;
  // Bytes of one rank: reduced, gathered in the end, scattered in all, sent to all others together,
  // or sent to its neighbour.
  Bytes bytes;
  double times = 1;  // a step
  // Share of it that nothing hides, in [0, 1]. The rest costs only what exceeds `window`, the time
  // a step under which it can hide.
  double exposed = 1;
  absl::Duration window = absl::InfiniteDuration();
  // kSendReceive: the last also sends to the first (interleaved pipelines); and everybody sends as
  // much to the previous one (gradients), at the same time.
  bool wraps = false;
  bool both_ways = false;

  // Time in a step that no computation hides, if one run takes `once`.
  absl::Duration Exposed(absl::Duration once) const;
};

// What stands between a rank and its NIC.
struct NodeShape {
  int gpus = 0;                                           // ranks of a host; 0: one a NIC
  Bandwidth nvlink = Bandwidth::BytesPerSecond(300e9);    // out of a GPU, one way (A100's NVLink 3)
  absl::Duration nvlink_latency = absl::Microseconds(3);  // of a message, software included
  // Software and NICs at both ends of a message between hosts; the fabric's own delays are added.
  absl::Duration network_latency = absl::Microseconds(8);
  // Flows into which a connection is split (queue pairs with source ports of their own).
  int queue_pairs = 1;
  // Payload's share of a NIC's bandwidth: 4096 bytes of 4160 on the wire.
  double efficiency = 4096.0 / 4160;
};

struct Job {
  std::string name;
  Mesh mesh;
  NodeShape node;
  std::vector<Traffic> traffic;

  // InvalidArgument names what is out of range, or an axis set that no traffic can use.
  absl::Status Validate() const;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_JOB_H_
