// Ranks that load a checkpoint together: each of its bytes is read from storage by one of them and
// passed on over the group's collectives, as read_plan.h says, a few megabytes at a time.
#ifndef WEFT_TRAINER_LOOP_SHARED_READ_H_
#define WEFT_TRAINER_LOOP_SHARED_READ_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/checkpoint/read_plan.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/groups/group.h"

namespace weft::train {

// Bytes, summed over all ranks.
struct ReadTotals {
  int64_t read_bytes = 0;     // from storage
  int64_t minimum_bytes = 0;  // size of all tensors that any rank needs, each counted once
  int64_t needed_bytes = 0;   // handed to the ranks
  int64_t passed_bytes = 0;   // part of needed_bytes that came from another rank
};

// Receives elements of this rank's needs[need]; the first of them is its element number `to`.
using TakeElements =
    std::function<void(size_t need, int64_t to, absl::Span<const std::byte> elements)>;

// All ranks call this with the same manifest, each with its own needs, which are parts of buffers
// of the manifest. `take` gets each needed element once. The elements are valid only if the result,
// the same on all ranks, is OK, because checksums are compared at the end. IsDamage(status) is true
// if files are damaged. `holders`: as for PlanRead. `round_bytes`: bytes that a rank reads before
// it passes them on.
absl::StatusOr<ReadTotals> ReadTogether(const CheckpointReader& reader,
                                        const std::vector<ReadNeed>& needs, Group& group,
                                        const TakeElements& take,
                                        const std::vector<std::vector<bool>>& holders = {},
                                        int64_t round_bytes = int64_t{8} << 20);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_SHARED_READ_H_
