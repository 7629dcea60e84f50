#include "net/cc/credit.h"

#include <algorithm>

namespace weft::net {

CreditPacer::CreditPacer(Bandwidth link, Bytes quantum, double share)
    : rate_(link * share), quantum_(quantum) {}

void CreditPacer::Add(Sender sender, Bytes first) {
  if (senders_.size() <= sender) senders_.resize(sender + 1);
  State& state = senders_[sender];
  state.granted = state.demand = state.unasked = first;
  state.is_known = true;
}

void CreditPacer::Remove(Sender sender) {
  if (sender < senders_.size()) senders_[sender].is_known = false;
}

void CreditPacer::Arrived(Sender sender, Bytes bytes, absl::Time now) {
  State& state = senders_[sender];
  Bytes unasked = std::min(bytes, state.unasked);
  if (unasked <= Bytes(0)) return;
  state.unasked -= unasked;
  next_ = std::max(next_, now) + unasked / rate_;
}

void CreditPacer::Demand(Sender sender, Bytes total) {
  State& state = senders_[sender];
  state.demand = std::max(state.demand, total);
  if (state.demand <= state.granted || state.is_queued) return;
  state.is_queued = true;
  turns_.push_back(sender);
}

std::optional<CreditPacer::Grant> CreditPacer::Next(absl::Time now) {
  if (next_ > now) return std::nullopt;
  while (!turns_.empty()) {
    Sender sender = turns_.front();
    turns_.pop_front();
    State& state = senders_[sender];
    state.is_queued = false;
    if (!state.is_known || state.demand <= state.granted) continue;
    Bytes grant = std::min(quantum_, state.demand - state.granted);
    state.granted += grant;
    // An idle pacer owes nobody the time that it did not use.
    next_ = std::max(next_, now) + grant / rate_;
    if (state.demand > state.granted) {
      state.is_queued = true;
      turns_.push_back(sender);
    }
    return Grant{sender, state.granted};
  }
  return std::nullopt;
}

absl::Time CreditPacer::deadline() const { return turns_.empty() ? absl::InfiniteFuture() : next_; }

}  // namespace weft::net
