// Time in which a process did not run, because it or its machine was stopped or suspended. That it
// received nothing meanwhile says nothing about the network.
#ifndef WEFT_NET_VERBS_PROCESS_STALL_H_
#define WEFT_NET_VERBS_PROCESS_STALL_H_

#include "absl/time/time.h"

namespace weft::net {

// On a busy host a process is late as well, but by less than this.
inline constexpr absl::Duration kStallMin = absl::Seconds(1);

// How long the process was stalled, where it does at `now` what was due at `due`; zero: not
// stalled.
inline absl::Duration StallTime(absl::Time due, absl::Time now) {
  const absl::Duration late = now - due;
  return late >= kStallMin ? late : absl::ZeroDuration();
}

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_PROCESS_STALL_H_
