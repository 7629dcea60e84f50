#include "tools/bw/link/ping.h"

#include <algorithm>

#include "base/clock.h"
#include "base/status.h"

namespace weft::link_bw {
namespace {

constexpr net::MessageKey kPingKey{.tag = 2}, kPongKey{.tag = 3};
constexpr size_t kTripsMax = 4 << 20;

}  // namespace

Ping::Ping(MeasuredLinks& links, int peer, size_t size, const Load& load, bool leads)
    : links_(links), peer_(peer), size_(size), leads_(leads), lengths_(Lengths::Of(load)) {}

absl::StatusOr<std::unique_ptr<Ping>> Ping::Create(MeasuredLinks& links, int peer, Bytes size,
                                                   const Load& load, bool leads) {
  std::unique_ptr<Ping> ping(new Ping(links, peer, static_cast<size_t>(size.count()), load, leads));
  WEFT_ASSIGN_OR_RETURN(
      ping->slots_,
      Slots::Allocate(links.transport(), std::max<size_t>(ping->size_, 1), kAhead + 1));
  ping->started_ = links.now();
  ping->trips_.reserve(1 << 16);
  WEFT_RETURN_IF_ERROR(ping->PostReceives());
  if (leads) {
    ping->sent_at_ = links.now();
    WEFT_RETURN_IF_ERROR(ping->Send(ping->size_));
  }
  return ping;
}

absl::Status Ping::Send(size_t bytes) {
  net::Request& request = sends_[sent_];
  if (sent_ >= sends_.depth()) {
    // The answer to a message says that it has arrived; its own completion may come after that.
    while (!request.done()) WEFT_RETURN_IF_ERROR(links_.Turn());
    WEFT_RETURN_IF_ERROR(request.status());
  }
  while (links_.to(peer_).PostSend(leads_ ? kPingKey : kPongKey, slots_.view(kAhead, bytes),
                                   &request) == net::Posted::kNotYet) {
    WEFT_RETURN_IF_ERROR(links_.Turn());
  }
  ++sent_;
  return absl::OkStatus();
}

absl::Status Ping::PostReceives() {
  while (!ending_ && posted_ - taken_ < kAhead) {
    net::ReceiveTarget target;
    target.out = slots_.view(static_cast<int>(posted_ % kAhead), std::max<size_t>(size_, 1));
    if (links_.from(peer_).PostReceive(leads_ ? kPongKey : kPingKey, target, &receives_[posted_]) ==
        net::Posted::kNotYet) {
      break;
    }
    ++posted_;
  }
  return absl::OkStatus();
}

// At the leader.
bool Ping::Enough() const {
  if (lengths_.iterations > 0) return taken_ >= lengths_.iterations + lengths_.warmup_iterations;
  // A round trip that takes longer than all of that is measured, too: once.
  return !trips_.empty() && links_.now() - started_ >= lengths_.window + lengths_.warmup;
}

void Ping::Count() {
  const bool counts = lengths_.iterations > 0;
  if (phase_ == Phase::kBefore) {
    if (counts ? taken_ >= lengths_.warmup_iterations
               : links_.now() - started_ >= lengths_.warmup) {
      phase_ = Phase::kWindow;
    }
    return;
  }
  if (leads_ && trips_.size() < kTripsMax) trips_.push_back(links_.now() - sent_at_);
}

absl::Status Ping::Pump() {
  const size_t marker = size_ == 0 ? 1 : 0;
  while (taken_ < posted_ && receives_[taken_].done()) {
    net::Request& arrived = receives_[taken_];
    WEFT_RETURN_IF_ERROR(arrived.status());
    ++taken_;
    if (arrived.bytes() != size_) {
      ending_ = true;
      phase_ = Phase::kAfter;
      if (!leads_) WEFT_RETURN_IF_ERROR(Send(marker));
      continue;
    }
    if (phase_ != Phase::kAfter) Count();
    if (leads_ && Enough()) {
      phase_ = Phase::kAfter;
      WEFT_RETURN_IF_ERROR(PostReceives());  // for the answers to the markers, and no more
      ending_ = true;
      for (int i = 0; i < kAhead; ++i) WEFT_RETURN_IF_ERROR(Send(marker));
      continue;
    }
    if (leads_) sent_at_ = links_.now();
    WEFT_RETURN_IF_ERROR(Send(size_));
    WEFT_RETURN_IF_ERROR(PostReceives());
  }
  return absl::OkStatus();
}

bool Ping::done() const {
  if (!ending_ || taken_ < posted_) return false;
  for (int64_t i = std::max<int64_t>(sent_ - sends_.depth(), 0); i < sent_; ++i) {
    if (!sends_[i].done()) return false;
  }
  return true;
}

}  // namespace weft::link_bw
