// Receiver-driven credits: the receiver hands out leave to send at the speed of its own link, to
// its senders in turn, so that the last hop never fills, however many send to it. After NDP
// (SIGCOMM 2017, section 3.2) and EQDS (NSDI 2022, section 4).
//
// Sender: a first window goes out at once (a sender cannot know who else sends); then what was
// granted. Both count every byte that was ever sent, retransmissions included, so that a lost grant
// is made good by the next, and a sender that lost packets asks for as many again.
//
//   sender                                                receiver
//   data, demand = sent so far + what is left to send --> CreditPacer::Demand(sender, demand)
//      <------------------------------ grant, at the pacer's time, at most quantum beyond the last
//
// Departures: EQDS's idle list (speculative credit to senders without demand) is left out.
#ifndef WEFT_NET_CC_CREDIT_H_
#define WEFT_NET_CC_CREDIT_H_

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/time/time.h"
#include "base/units.h"

namespace weft::net {

// One a port, shared by all connections that receive through it.
class CreditPacer {
 public:
  using Sender = uint32_t;  // numbers from 0, dense
  struct Grant {
    Sender sender;
    Bytes limit;  // bytes that it may have sent in all
  };
  // `share` of the link is handed out; the rest is for what credits do not govern.
  CreditPacer(Bandwidth link, Bytes quantum, double share = 0.99);

  // `first` was allowed to the sender without asking; known again, it starts anew.
  void Add(Sender sender, Bytes first);
  void Remove(Sender sender);
  // So many bytes have arrived, or their headers. As long as they are of what was allowed without
  // asking they take their share of the link's time, so that first windows and grants together do
  // not exceed it.
  void Arrived(Sender sender, Bytes bytes, absl::Time now);
  // Wants to send up to so many bytes in all. Never goes back.
  void Demand(Sender sender, Bytes total);
  Bytes Granted(Sender sender) const { return senders_[sender].granted; }

  // The next grant, if one is due.
  std::optional<Grant> Next(absl::Time now);
  // When Next() has something; InfiniteFuture: not before more is demanded.
  absl::Time deadline() const;

 private:
  struct State {
    Bytes granted, demand;
    Bytes unasked;  // of the first window, still to arrive
    bool is_known = false, is_queued = false;
  };
  const Bandwidth rate_;
  const Bytes quantum_;
  std::vector<State> senders_;
  std::deque<Sender> turns_;
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace weft::net

#endif  // WEFT_NET_CC_CREDIT_H_
