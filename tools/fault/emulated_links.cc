#include "tools/fault/emulated_links.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"

namespace weft::fault {
namespace {

constexpr int kSamples = 10;  // of the flows, in the time of an exchange that takes ten times long

}  // namespace

EmulatedLinks::EmulatedLinks(Records* records, int rank, int size, uint64_t bytes,
                             absl::Duration exchange)
    : records_(records),
      next_((rank + 1) % size),
      before_((rank + size - 1) % size),
      bytes_(bytes),
      exchange_(exchange) {}

void EmulatedLinks::Write(int peer, bool sends, const LinkState& state, double part_left,
                          uint32_t stuck_ms) {
  if (records_ == nullptr) return;
  FlowRecord flow;
  flow.sends = sends ? 1 : 0;
  flow.name = records_->Name("emulated links");
  flow.peer = peer;
  flow.time_ns = SystemClock::Nanoseconds();
  flow.stuck_ms = stuck_ms;
  flow.rtt_us = sends ? static_cast<uint32_t>(state.rtt_us) : 0;
  flow.outstanding = part_left > 0 ? 1 : 0;
  flow.repeats = sends ? repeats_[peer] : 0;
  flow.bytes_matched = matched_[{peer, sends}];
  const auto left = static_cast<uint64_t>(part_left * static_cast<double>(bytes_));
  flow.bytes_done = flow.bytes_matched - left;
  flow.bytes_transmitted = state.held_before_nic ? flow.bytes_done : flow.bytes_matched;
  records_->Write(flow);
}

void EmulatedLinks::Exchange(const LinkState& next, const LinkState& before) {
  struct End {
    int peer;
    const LinkState* state;
  };
  const End ends[] = {{next_, &next}, {before_, &before}};
  for (const End& end : ends) {
    for (const bool sends : {true, false}) matched_[{end.peer, sends}] += bytes_;
    repeats_[end.peer] += end.state->repeats;
  }
  const double slowest = std::max(next.slowness, before.slowness);
  for (int sample = 0; sample < kSamples; ++sample) {
    // A healthy exchange is over after one sample, one that is ten times as slow after all.
    for (const End& end : ends) {
      const double left = std::max(0.0, 1 - sample / end.state->slowness);
      for (const bool sends : {true, false}) Write(end.peer, sends, *end.state, left, 0);
    }
    if (sample < slowest) absl::SleepFor(exchange_);
  }
  const double rtt_us = std::max(next.rtt_us, before.rtt_us);
  absl::SleepFor(exchange_ * std::max(0.0, slowest - kSamples) + absl::Microseconds(rtt_us));
}

void EmulatedLinks::Stand(int peer, uint32_t tag) {
  constexpr absl::Duration kPeriod = absl::Milliseconds(100);
  matched_[{peer, true}] += bytes_;
  if (records_ != nullptr) {
    CallRecord call;
    call.name = records_->Name("send");
    call.group = records_->Name("world");
    call.start_ns = SystemClock::Nanoseconds();
    call.peer = peer;
    call.sequence = tag;
    call.bytes = bytes_;
    records_->Write(call);
  }
  for (absl::Duration stuck;; stuck += kPeriod) {
    Write(peer, true, {}, 1, static_cast<uint32_t>(absl::ToInt64Milliseconds(stuck)));
    absl::SleepFor(kPeriod);
  }
}

void EmulatedLinks::Say(absl::string_view source, absl::string_view name, double value) {
  if (records_ == nullptr) return;
  records_->Say(
      absl::StrCat("reading ", SystemClock::Nanoseconds(), " ", source, " ", name, " ", value));
}

void EmulatedLinks::Count(absl::string_view name, double by) {
  double& value = counters_[std::string(name)];
  value += by;
  Say("nic/mlx5_0", name, value);
}

}  // namespace weft::fault
