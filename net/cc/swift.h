// Swift: a window that holds the delay at a target. Kumar et al., "Swift: Delay is Simple and
// Effective for Congestion Control in the Datacenter", SIGCOMM 2020, algorithms 1 and 2.
//
// cwnd in packets; for each acknowledgement, with `acked` packets and the newest delay d
// (algorithm 1):
//
//   d < target    cwnd += ai acked / cwnd   (cwnd >= 1),  ai acked   (cwnd < 1)
//   d >= target   at most once a round trip: cwnd *= max(1 - beta (d - target) / d, 1 - max_mdf)
//   loss          at most once a round trip: cwnd *= 1 - max_mdf
//   timeout       the fifth in a row: cwnd = cwnd_min; else as a loss
//
// The fabric's target (equation 2 and section 3.5; topology and flow scaling):
//
//   target = base + hops h + max(0, min(fs_range, fs_alpha / sqrt(cwnd) + fs_beta))
//   fs_alpha = fs_range / (1 / sqrt(fs_min) - 1 / sqrt(fs_max)),
//   fs_beta = -fs_alpha / sqrt(fs_max)
//
// and a second window by the same rules for what the peer held, with a target of its own (section
// 3.3); the smaller of the two counts. cwnd < 1: one packet each round trip / cwnd, by the pacer
// (section 3.2).
//
// MSwift (arXiv 2509.07907): fed with the median of a bounded window of the latest delays instead
// of the newest. Of packets that are sprayed over n paths of which one is congested, a share q of
// the samples exceeds the target; each round trip holds at least one such, so plain Swift cuts
// every round trip and ends near 1 / sqrt(q) of what it could have. The median does not see them
// while q < 1/2.
//
// Departures: `base` is the path's own unloaded round trip instead of a constant for a data centre,
// and h and fs_range are shares of it, as in the simulator of its first public implementation
// (htsim: h = base / 6.55, fs_range = 5 base, fs_min 0.1, fs_max 100, ai 1, beta 0.8, max_mdf 0.5).
// The target of the second window is never below `base`: on slow links an acknowledgement waits
// longer than the paper's 100 us for the packet before it to leave.
// A window of fs_max packets and more has no flow scaling at all: where the path holds more than
// that, ai alone makes flows equal.
#ifndef WEFT_NET_CC_SWIFT_H_
#define WEFT_NET_CC_SWIFT_H_

#include <cstdint>
#include <vector>

#include "net/cc/controller.h"

namespace weft::net {

struct SwiftParameters {
  double ai = 1;  // packets a round trip
  double beta = 0.8;
  double max_mdf = 0.5;
  double hop = 0.15;          // h, base round trips
  double fs_range = 5;        // base round trips
  double fs_min = 0.1;        // packets
  double fs_max = 100;        // packets
  double endpoint_us = 100;   // target of what the peer holds, if above the base round trip
  double window_min = 0.001;  // packets
  double window_max = 4;      // products
  double window_start = 1;    // products
  double samples = 0;         // MSwift: of how many the median is taken, at most; 0, 1: the newest
};

// The newest `capacity` of a stream of delays, in order of size. At most 63.
class RecentMedian {
 public:
  explicit RecentMedian(size_t capacity);
  absl::Duration Add(absl::Duration delay);  // returns the median of what it holds

 private:
  size_t capacity_;
  std::vector<absl::Duration> ring_;    // by age
  std::vector<absl::Duration> sorted_;  // by size
  size_t oldest_ = 0;
};

// One window of the two, and what the hybrid builds on.
class SwiftWindow {
 public:
  SwiftWindow(const SwiftParameters& parameters, double window_max)
      : parameters_(parameters), max_(window_max), window_(window_max) {}
  void OnDelay(absl::Time now, absl::Duration rtt, absl::Duration delay, absl::Duration target,
               double packets);
  void Grow(double packets);
  // At most once a round trip; `cut` is bounded by max_mdf.
  void Shrink(absl::Time now, absl::Duration rtt, double cut);
  void Collapse() { window_ = parameters_.window_min; }
  double window() const { return window_; }  // packets
  void Set(double packets);
  void set_max(double packets) { max_ = packets; }

 private:
  const SwiftParameters& parameters_;
  double max_, window_;
  absl::Time shrunk_ = absl::InfinitePast();
};

// A window's most, in packets.
double SwiftWindowMax(const PathFacts& facts, const SwiftParameters& parameters);
// base + hops h + flow scaling, for a window of `packets`.
absl::Duration SwiftTarget(const PathFacts& facts, const SwiftParameters& parameters,
                           double packets);

class Swift final : public Controller {
 public:
  Swift(const PathFacts& facts, const SwiftParameters& parameters);
  absl::string_view name() const override { return median_ ? "mswift" : "swift"; }
  void SetBaseRtt(absl::Duration base) override;
  void OnAck(const AckSample& ack) override;
  void OnLoss(absl::Time now, Bytes lost, Bytes in_flight) override;
  void OnTimeout(absl::Time now, int consecutive) override;
  Bytes window() const override;
  Bandwidth rate() const override;
  void Visit(StateVisitor visit) const override;

  double packets() const;  // the smaller window
  absl::Duration target() const { return SwiftTarget(facts_, parameters_, fabric_.window()); }

 private:
  PathFacts facts_;
  const SwiftParameters parameters_;
  const bool median_;
  RecentMedian recent_;
  SwiftWindow fabric_, endpoint_;
  absl::Duration rtt_, delay_;  // the newest; what the controller was fed
};

// The window and the rate that stand for a number of packets, which may be below one.
Bytes WindowOf(double packets, const PathFacts& facts);
Bandwidth RateOf(double packets, const PathFacts& facts, absl::Duration rtt);

}  // namespace weft::net

#endif  // WEFT_NET_CC_SWIFT_H_
