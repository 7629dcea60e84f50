// Which of a link's lanes an entry goes on, by the speeds that were measured. Pure functions.
#ifndef WEFT_NET_VERBS_STRIPING_H_
#define WEFT_NET_VERBS_STRIPING_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"
#include "net/verbs/lane.h"
#include "net/verbs/rails.h"
#include "net/verbs/sent_entries.h"

namespace weft::net {

// The lane that would be done first with `bytes` more, by what each has on its way and its speed,
// of those that have room and are not much later than the first of all; -1: wait for that one.
int ChooseLane(absl::Span<const Lane> lanes, Rails& rails, const SentEntries& sent, uint64_t bytes);

// Bytes, of which the slowest queue pair has two acknowledged within Lane::kDelayTarget.
size_t LargestPiece(absl::Span<const Lane> lanes);

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_STRIPING_H_
