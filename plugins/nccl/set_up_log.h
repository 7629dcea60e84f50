// Times of setting up connections, by phase, for the log, which shows where the seconds of a job
// with thousands of connections went.
//
//   listen     in the call: a socket, or a whole transport for a communicator's first
//   waiting    of a listener, from the first accept until its peer's handshake is over: also for
//              the peer to begin
//   handshake  of a connector, from the first connect until the link stands
//   greeting   from then until the two ends have agreed, either side
//   memory     in regMr
//
// Thread-safe. One for a process.
#ifndef WEFT_PLUGINS_NCCL_SET_UP_LOG_H_
#define WEFT_PLUGINS_NCCL_SET_UP_LOG_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>

#include "absl/time/time.h"

namespace weft::nccl {

enum class SetUpPhase : uint8_t { kListen, kWaiting, kHandshake, kGreeting, kMemory };

class SetUpLog {
 public:
  void Add(SetUpPhase phase, absl::Time begin, absl::Time end);
  // One end of a connection stands.
  void AddConnection(absl::Time begin, absl::Time now);

  // Once data flows, or all is over: what has come since the last line; "" when no connection has,
  // or the last line is not a second old and `final` is false. Cheap when there is nothing.
  std::string TakeLine(absl::Time now, bool final);

 private:
  struct Tally {
    int count = 0;
    absl::Duration sum, longest;
  };
  std::atomic<bool> pending_{false};
  std::mutex mutex_;
  std::array<Tally, 5> tallies_;
  int connections_ = 0;
  absl::Time first_ = absl::InfiniteFuture(), last_ = absl::InfinitePast();
  absl::Time said_ = absl::InfinitePast();
};

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_SET_UP_LOG_H_
