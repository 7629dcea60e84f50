// The links of an emulated rank to its neighbours: a NIC whose flows and counters are made up, and
// written as records beside those of the real transport that carries the emulated job.
//
// An exchange takes the time that the links would take; what is wrong with them (a cap, a latency,
// losses, competing traffic) changes that time and the counters that a real NIC would show: the
// counters' names are those of mlx5's driver. The links' transport is called "emulated".
#ifndef WEFT_TOOLS_FAULT_EMULATED_LINKS_H_
#define WEFT_TOOLS_FAULT_EMULATED_LINKS_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/records.h"

namespace weft::fault {

struct LinkState {
  double slowness = 1;  // the exchange's bytes take so many times as long
  double rtt_us = 20;
  uint32_t repeats = 0;          // each exchange
  bool held_before_nic = false;  // bytes wait on this side (a slow NIC), not on the way
};

class EmulatedLinks {
 public:
  // `records` may be null. `size`: of the ring of ranks; `exchange`: of a healthy link's bytes.
  EmulatedLinks(Records* records, int rank, int size, uint64_t bytes, absl::Duration exchange);

  // To the next rank of the ring, and to the one before. Sleeps as long as the slower one takes,
  // and writes the flows of both ends that this rank has.
  void Exchange(const LinkState& next, const LinkState& before);
  // A message to a peer that leaves and does not arrive: writes its call, and the flow every
  // 100 ms.
  [[noreturn]] void Stand(int peer, uint32_t tag);
  // Adds to a counter of the NIC, and says so.
  void Count(absl::string_view name, double by);
  void Say(absl::string_view source, absl::string_view name, double value);
  int next() const { return next_; }
  int before() const { return before_; }

 private:
  void Write(int peer, bool sends, const LinkState& state, double part_left, uint32_t stuck_ms);

  Records* const records_;
  const int next_, before_;
  const uint64_t bytes_;
  const absl::Duration exchange_;
  std::map<std::pair<int, bool>, uint64_t> matched_;
  std::map<int, uint32_t> repeats_;
  std::map<std::string, double, std::less<>> counters_;
};

}  // namespace weft::fault

#endif  // WEFT_TOOLS_FAULT_EMULATED_LINKS_H_
