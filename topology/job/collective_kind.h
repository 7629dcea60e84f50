// The kinds of collective, as the library runs them, the planner places them and the simulator and
// the tools replay them.
#ifndef WEFT_TOPOLOGY_JOB_COLLECTIVE_KIND_H_
#define WEFT_TOPOLOGY_JOB_COLLECTIVE_KIND_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::topology {

enum class CollectiveKind : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kAllGatherV,
  kAllToAllV,
  kBarrier,
  // Each rank to the next of its group: how a pipeline's traffic is described; a communicator has
  // no such operation.
  kSendReceive,
};
// Number of the kinds that a communicator has.
inline constexpr int kCollectiveKindCount = 11;

const char* ToString(CollectiveKind kind);  // "all_reduce", ..., "send_recv"
// One of `allowed`. InvalidArgument lists their names.
absl::StatusOr<CollectiveKind> ParseCollectiveKind(absl::string_view name,
                                                   absl::Span<const CollectiveKind> allowed);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_COLLECTIVE_KIND_H_
