// What the net plugin says of a link to NCCL's profiler, as the data of an event of its own kind.
#ifndef WEFT_PLUGINS_NCCL_PROFILED_LINK_H_
#define WEFT_PLUGINS_NCCL_PROFILED_LINK_H_

#include <cstdint>

namespace weft::nccl {

struct ProfiledLink {
  int64_t rtt_ns = 0;    // smoothed; 0: the transport does not measure it
  uint64_t repeats = 0;  // since it was said last
};
// "WT", version 1: not IB's (1), not sockets' (2).
inline constexpr int64_t kNetEventId = int64_t{0x5754} << 16 | 1;

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_PROFILED_LINK_H_
