// What the error and congestion counters of RDMA devices mean, in words: those of the InfiniBand
// specification (port counters), mlx5's and Soft-RoCE's (hw_counters), and pauses of their
// interfaces.
#ifndef WEFT_NET_ROCE_COUNTERS_H_
#define WEFT_NET_ROCE_COUNTERS_H_

#include <cstdint>
#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::net {

enum class CounterClass : uint8_t {
  kLoss,        // something was lost or sent again
  kCongestion,  // the fabric or a receiver asked for less
  kLink,        // a cable, a transceiver, a port
  kRefused,     // requests that were wrong or not allowed: software's fault
};
const char* ToString(CounterClass which);  // "loss", "congestion", "link", "refused"

struct CounterInfo {
  absl::string_view name;  // of its file
  CounterClass which;
  absl::string_view meaning;  // "packets that arrived out of order: ..."
  absl::string_view advice;   // what to do when it grows
};

absl::Span<const CounterInfo> KnownCounters();
const CounterInfo* FindCounter(absl::string_view name);  // null: not one that tells trouble

// Known counters that grew from `before` to `after`, and by how much.
std::map<std::string, int64_t> Growth(const std::map<std::string, int64_t>& before,
                                      const std::map<std::string, int64_t>& after);

}  // namespace weft::net

#endif  // WEFT_NET_ROCE_COUNTERS_H_
