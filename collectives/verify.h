// Proves the schedules of all ranks of one collective correct, before any byte moves:
//
//   - every message meets one of its length, and nothing waits for ever: no deadlock, whatever the
//     transport's timing, as a send completes no earlier than its receive is posted;
//   - every element of every output holds every contribution that it should, each exactly once, and
//     its average is taken exactly once;
//   - no two steps of a rank touch the same element, one of them writing, without an order between
//     them; no step leaves its buffers; inputs are never written, but in place;
//   - after a barrier every rank has heard of every other.
//
// Symbolic: stretches of elements, not elements, so the cost depends on the number of steps alone:
// about steps^2 / 8 bytes a rank.
#ifndef WEFT_COLLECTIVES_VERIFY_H_
#define WEFT_COLLECTIVES_VERIFY_H_

#include <vector>

#include "absl/status/status.h"
#include "collectives/schedule.h"

namespace weft::collectives {

// Both by rank. kInternal with the rank, the step and the fault.
absl::Status VerifySchedules(const std::vector<CollectiveSpec>& specs,
                             const std::vector<RankSchedule>& schedules);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_VERIFY_H_
