// Time in which a process could hear nothing, because it stood still: it was stopped or suspended,
// or its machine was. Silence of that kind says nothing of the network.
#ifndef WEFT_NET_VERBS_STANDSTILL_H_
#define WEFT_NET_VERBS_STANDSTILL_H_

#include "absl/time/time.h"

namespace weft::net {

// A busy host is later than it should be as well, but not by so much.
inline constexpr absl::Duration kStandstillLeast = absl::Seconds(1);

// By how much something is done later than it was due, where that is a standstill; else zero.
inline absl::Duration Standstill(absl::Time due, absl::Time now) {
  const absl::Duration late = now - due;
  return late >= kStandstillLeast ? late : absl::ZeroDuration();
}

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_STANDSTILL_H_
