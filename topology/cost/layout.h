// A training job as the network sees it: how its ranks are cut into parallel groups, and what each
// kind of group sends in a step.
//
// A rank has a coordinate on each of five axes. `nesting` says which coordinate varies fastest from
// rank to rank: Megatron-LM's "tp-cp-ep-dp-pp" is {tensor, context, expert, data, pipeline}. Ranks
// that differ only in the axes of a set form a group of that set, in order of rank: neighbours in a
// ring or a tree are neighbours in that order.
//
// Values; thread-safe as such. Read from files by job_file.h.
#ifndef WEFT_TOPOLOGY_COST_LAYOUT_H_
#define WEFT_TOPOLOGY_COST_LAYOUT_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"

namespace weft::topology {

enum class Axis : uint8_t { kTensor, kContext, kExpert, kData, kPipeline };
inline constexpr int kAxisCount = 5;

const char* ToString(Axis axis);
// "tensor" or "tp", "context" or "cp", "expert" or "ep", "data" or "dp", "pipeline" or "pp".
absl::StatusOr<Axis> ParseAxis(absl::string_view name);

class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis axis : axes) Add(axis);
  }
  constexpr void Add(Axis axis) { bits_ |= static_cast<uint8_t>(1U << static_cast<int>(axis)); }
  constexpr bool Has(Axis axis) const { return (bits_ >> static_cast<int>(axis) & 1U) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const AxisSet&) const = default;

 private:
  uint8_t bits_ = 0;
};

std::string ToString(AxisSet axes);  // "data+context"

enum class Collective : uint8_t {
  kAllReduce,
  kReduceScatter,
  kAllGather,
  kAllToAll,
  kSendRecv,  // each to the next of its group
};

enum class GroupAlgorithm : uint8_t {
  kRing,          // one flat ring a NIC, through all GPUs of a host before the next host
  kTree,          // double binary tree over hosts, chain inside; all-reduce only
  kHierarchical,  // inside the hosts, then a ring per GPU of a host, then inside again
};

const char* ToString(Collective collective);
const char* ToString(GroupAlgorithm algorithm);
absl::StatusOr<Collective> ParseCollective(absl::string_view name);
absl::StatusOr<GroupAlgorithm> ParseGroupAlgorithm(absl::string_view name);

// One kind of communication: every group of `axes` does it, all groups at the same time.
struct Traffic {
  std::string name;  // "gradients"
  AxisSet axes;
  Collective collective = Collective::kAllReduce;
  GroupAlgorithm algorithm = GroupAlgorithm::kRing;
  // Of one rank: what is reduced, what has been gathered, what is scattered in all, what a rank
  // hands to all others together, or to its neighbour.
  Bytes bytes;
  double times = 1;  // a step
  // Share of it that nothing hides, in [0, 1]. The rest costs only what exceeds `window`, the time
  // a step under which it can hide.
  double exposed = 1;
  absl::Duration window = absl::InfiniteDuration();
  // kSendRecv: the last also sends to the first (interleaved pipelines); and everybody sends as
  // much to the previous one (gradients), at the same time.
  bool wraps = false;
  bool both_ways = false;

  // Of a step, that nothing hides, if one takes `once`.
  absl::Duration Exposed(absl::Duration once) const;
};

struct JobLayout {
  std::array<int, kAxisCount> sizes{1, 1, 1, 1, 1};  // by Axis
  std::array<Axis, kAxisCount> nesting{Axis::kTensor, Axis::kContext, Axis::kExpert, Axis::kData,
                                       Axis::kPipeline};  // fastest first

  int Size(Axis axis) const { return sizes[static_cast<size_t>(axis)]; }
  int world() const;
  int Stride(Axis axis) const;  // ranks between neighbours on it
  int Coordinate(int rank, Axis axis) const { return rank / Stride(axis) % Size(axis); }

  int GroupSize(AxisSet axes) const;
  int Groups(AxisSet axes) const { return world() / GroupSize(axes); }
  struct Place {
    int group;  // in order of their lowest ranks
    int index;  // in order of rank
  };
  Place PlaceOf(int rank, AxisSet axes) const;

  // "tensor 8 x data 192 x pipeline 8", fastest first.
  std::string Describe() const;
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
  JobLayout layout;
  NodeShape node;
  std::vector<Traffic> traffic;

  // InvalidArgument names what is out of range, or an axis set that no traffic can use.
  absl::Status Validate() const;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_LAYOUT_H_
