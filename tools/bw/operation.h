// The calls that weft-bw measures: their names, how many bytes they count, where their buffers lie,
// how one is started, and whether what came out is right.
#ifndef WEFT_TOOLS_BW_OPERATION_H_
#define WEFT_TOOLS_BW_OPERATION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/units.h"
#include "collectives/communicator.h"
#include "collectives/data_type.h"
#include "collectives/endpoint.h"
#include "collectives/schedule.h"

namespace weft::bw {

enum class Operation : uint8_t {
  kAllReduce,
  kAllGather,
  kReduceScatter,
  kBroadcast,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kAllGatherV,   // with counts per rank, which are equal here
  kAllToAllV,    // likewise; all ranks know the typical count
  kSendReceive,  // every rank sends to the next and receives from the one before
  kBarrier,
};

struct OperationInfo {
  Operation operation;
  const char* name;  // of --op
  bool per_rank;     // its count is a rank's part; the size is that of all parts
  bool in_place;     // has an in-place form
  std::optional<collectives::CollectiveKind> kind;

  bool reduces() const { return kind.has_value() && collectives::Reduces(*kind); }
  bool rooted() const { return kind.has_value() && collectives::HasRoot(*kind); }
};
absl::Span<const OperationInfo> Operations();
const OperationInfo& InfoOf(Operation operation);
// Null when there is none.
const OperationInfo* FindOperation(absl::string_view name);

// One thing to measure.
struct Case {
  Operation operation = Operation::kAllReduce;
  collectives::DataType type = collectives::DataType::kFloat32;
  collectives::ReduceOp op = collectives::ReduceOp::kSum;
  int root = 0;
  size_t count = 0;  // elements, as nccl-tests counts them
  bool in_place = false;
};

// The largest case of that type that is not larger than `size`.
size_t CountFor(Operation operation, collectives::DataType type, Bytes size, int ranks);
// Counts and offsets by rank, of what has them.
struct Parts {
  std::vector<size_t> counts, offsets;
};
Parts PartsOf(const Case& what, int ranks);
// What the size column says: of the whole buffer, over all ranks where they have parts.
Bytes SizeOf(const Case& what, int ranks);
// From algorithm bandwidth to bus bandwidth, as nccl-tests defines it.
double BusFactor(Operation operation, int ranks);

// Two buffers of a rank, and what is done with them. Not thread-safe.
class Buffers {
 public:
  // For cases up to `size`.
  // From `endpoint`, so that peers on this host read them where they lie; null: from the heap.
  static absl::StatusOr<Buffers> Allocate(Bytes size, int ranks, collectives::Endpoint* endpoint);

  // Writes this rank's input, and something else everywhere else.
  void Fill(const Case& what, int rank, int ranks);
  // Starts it once; appends what is to be waited for.
  void Start(const Case& what, collectives::Communicator& communicator,
             std::vector<collectives::WorkPtr>& works);
  // Elements of this rank's output that are not what Fill() of all ranks and one Start() make them.
  int64_t Wrong(const Case& what, int rank, int ranks) const;

 private:
  struct View {
    std::byte* input;
    std::byte* output;
  };
  Buffers() = default;
  View ViewOf(const Case& what, int rank) const;

  size_t bytes_ = 0;  // of each
  std::shared_ptr<std::byte> send_, receive_;
};

}  // namespace weft::bw

#endif  // WEFT_TOOLS_BW_OPERATION_H_
