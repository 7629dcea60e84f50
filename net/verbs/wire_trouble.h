// Since when a link has got nothing across, and what was tried meanwhile: by this it gives up.
#ifndef WEFT_NET_VERBS_WIRE_TROUBLE_H_
#define WEFT_NET_VERBS_WIRE_TROUBLE_H_

#include <algorithm>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "net/verbs/nic.h"

namespace weft::net {

struct WireTrouble {
  absl::Time since = absl::InfiniteFuture();  // InfiniteFuture: there is none
  std::string last_failure;                   // which lane, and how; never cleared
  NicStatus last_status = NicStatus::kOk;     // of a completion that failed
  int pairs_made = 0;                         // queue pairs, since the link began

  bool is_there() const { return since < absl::InfiniteFuture(); }
  void Begin(absl::Time now) { since = std::min(since, now); }
  void Begin(absl::Time now, std::string failure) {
    Begin(now);
    last_failure = std::move(failure);
  }
  void End() { since = absl::InfiniteFuture(); }
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_WIRE_TROUBLE_H_
