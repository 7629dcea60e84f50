// What the kernel alone takes for a layout: the same sockets, messages and bytes as the store's
// ranks and relays have, moved by loops that do nothing else. No handshake, no frames, no epoll, no
// memory but a few buffers. What weft-init measures can approach this and not pass it.
#ifndef WEFT_TESTS_BENCH_INIT_FLOOR_H_
#define WEFT_TESTS_BENCH_INIT_FLOOR_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "tools/init/options.h"

namespace weft::init {

struct FloorMeasurement {
  int ranks = 0;
  int hosts = 0;
  int processes = 0;
  int64_t exchange_bytes = 0;
  // Every connection is there, has brought one message, and after the last one got one. With
  // --relay: every rank's over a Unix socket, with an answer of its own to its first message, and
  // one over TCP for each host.
  double connect = 0;
  // As many bytes to everybody as the exchange has, which are read; with --relay: to every host,
  // where they are written into a memory file, which is mapped and compared.
  double exchange = 0;
};

absl::StatusOr<FloorMeasurement> MeasureFloor(const Options& options);

}  // namespace weft::init

#endif  // WEFT_TESTS_BENCH_INIT_FLOOR_H_
