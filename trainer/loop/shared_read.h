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

// Over all ranks.
struct ReadTotals {
  int64_t read_bytes = 0;     // from storage
  int64_t minimum_bytes = 0;  // of all tensors that anybody needs, once each
  int64_t needed_bytes = 0;   // what the ranks got
  int64_t passed_bytes = 0;   // of these, from another rank
};

// Elements of a need of this rank, from its element `to` on.
using TakeElements =
    std::function<void(size_t need, int64_t to, absl::Span<const std::byte> elements)>;

// Called by all ranks with the same manifest, each with its own needs, of buffers of the manifest.
// `take` gets each element of them once; what it has got is worth something only if the outcome,
// the same on all ranks, is OK: checksums are known at the end. IsDamage tells files that are
// wrong. `holders` as of PlanRead. `round_bytes`: what a rank reads before it passes it on.
absl::StatusOr<ReadTotals> ReadTogether(const CheckpointReader& reader,
                                        const std::vector<ReadNeed>& needs, Group& group,
                                        const TakeElements& take,
                                        const std::vector<std::vector<bool>>& holders = {},
                                        int64_t round_bytes = int64_t{8} << 20);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_SHARED_READ_H_
