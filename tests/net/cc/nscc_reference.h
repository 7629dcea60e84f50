// A second NSCC, which the tests hold the first against (net/cc/nscc.h): written for a simulator,
// in whole picoseconds, from the specification's own simulator.
//
// NSCC, the sender's congestion control of Ultra Ethernet (UEC specification 1.0, 3.6.13; based on
// SMaRTT, arXiv 2404.01630): a window from two signals, the ECN bit and the delay of each
// acknowledgement, of which neither alone decides. Constants as in the specification's own
// simulator; they scale from a network of 100 Gb/s and 12 us to that of the flow.
//
//   no mark, delay < target    grow in proportion to the room; after a window without delay, fast
//   no mark, delay >= target   grow fairly (the queue is draining)
//   mark,    delay >= target   shrink by the average's excess, once a round trip
//   mark,    delay < target    keep (another path will do)
//
// Losses take their bytes off the window. "Quick adapt" cuts it to what was delivered when a whole
// period brought next to nothing; what was in flight then, and tells of the same congestion, is
// passed over.
#ifndef WEFT_TESTS_NET_CC_NSCC_REFERENCE_H_
#define WEFT_TESTS_NET_CC_NSCC_REFERENCE_H_

#include <cstdint>

namespace weft::net {

class NsccReference {
 public:
  using Picoseconds = int64_t;
  struct Facts {
    Picoseconds round_trip = 0;
    double bytes_per_picosecond = 0;
    int64_t packet_bytes = 0;
    bool trimming = false;
  };
  struct Ack {
    Picoseconds now;
    Picoseconds round_trip;  // of the packet that this acknowledges
    int64_t bytes;           // newly acknowledged
    int64_t in_flight;       // bytes that remain
    bool marked;             // ECN
  };

  explicit NsccReference(const Facts& facts);
  void OnAck(const Ack& ack);
  void OnLoss(Picoseconds now, int64_t bytes, int64_t in_flight);
  void OnTimeout(Picoseconds now);
  double window() const { return window_; }  // bytes

 private:
  bool QuickAdapt(Picoseconds now, bool is_bad, bool is_loss, double delay, int64_t in_flight);
  void Average(double delay, bool marked);
  void Grow(double bytes, double delay);
  void Shrink(Picoseconds now);
  void Fulfill(Picoseconds now);
  void Bound();

  // Times in picoseconds, the rest in bytes; doubles, as the formulas divide.
  const double packet_, round_trip_, product_, target_, window_max_;
  double scale_, alpha_, fair_, eta_, adapt_gate_;
  double window_;
  double increase_ = 0;   // gathered, applied every few packets
  int64_t gathered_ = 0;  // bytes since it was applied
  double average_delay_ = 0;
  Picoseconds shrunk_at_ = 0, grown_at_ = 0, adapt_end_ = 0;
  int64_t delivered_ = 0;  // in the period of quick adapt
  bool adapt_asked_ = false;
  int64_t ignore_ = 0, ignored_ = 0;  // bytes: that were in flight at the cut; heard of since
  double fast_count_ = 0;             // bytes acknowledged without delay
  bool is_fast_ = false;
};

}  // namespace weft::net

#endif  // WEFT_TESTS_NET_CC_NSCC_REFERENCE_H_
