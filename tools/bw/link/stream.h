// One flow of messages, seen from its two ends. Both keep `depth` requests posted. The sender ends
// with `depth` markers (messages of another size), which use up what the receiver still has posted;
// so both ends finish with no request left posted, whichever end decides when to stop.
#ifndef WEFT_TOOLS_BW_LINK_STREAM_H_
#define WEFT_TOOLS_BW_LINK_STREAM_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/bw/link/measured_links.h"
#include "tools/bw/link/options.h"

namespace weft::link_bw {

// Where a flow stands. Its figures are of the window alone.
enum class Phase : uint8_t { kBefore, kWindow, kAfter };

// A test's lengths, in nanoseconds or, if `iterations` is above 0, in messages.
struct Lengths {
  int64_t warmup = 0, window = 0;  // nanoseconds
  int64_t iterations = 0, warmup_iterations = 0;
  static Lengths Of(const Load& load);
};

// Messages of that size that are under way at once, so that their memory stays bounded.
int DepthFor(const Load& load, Bytes size);

class Requests {
 public:
  explicit Requests(int depth) : slots_(static_cast<size_t>(depth)) {}
  net::Request& operator[](int64_t index) {
    return slots_[static_cast<size_t>(index) % slots_.size()];
  }
  const net::Request& operator[](int64_t index) const {
    return slots_[static_cast<size_t>(index) % slots_.size()];
  }
  int depth() const { return static_cast<int>(slots_.size()); }

 private:
  std::vector<net::Request> slots_;
};

class StreamSender {
 public:
  static absl::StatusOr<std::unique_ptr<StreamSender>> Create(MeasuredLinks& links, int to,
                                                              Bytes size, const Load& load);
  // After every turn of the links.
  absl::Status Pump();
  bool done() const { return taken_ == total_; }
  Phase phase() const { return phase_; }
  int to() const { return to_; }

 private:
  StreamSender(MeasuredLinks& links, int to, size_t size, const Load& load);
  bool Enough() const;
  void Fill(int64_t message);

  MeasuredLinks& links_;
  const int to_;
  const size_t size_;
  const bool check_;
  const int post_list_;
  const Lengths lengths_;
  Requests requests_;
  Slots slots_;
  int64_t started_ = 0;  // when
  int64_t posted_ = 0, taken_ = 0;
  int64_t total_ = INT64_MAX;  // messages and markers, once that is known
  int64_t markers_from_ = INT64_MAX;
  Phase phase_ = Phase::kBefore;
};

struct StreamResult {
  int64_t messages = 0, bytes = 0;
  double seconds = 0;
  double peak = 0;    // bytes a second, in the best tenth of the window
  int64_t wrong = 0;  // messages with a wrong byte
};

class StreamReceiver {
 public:
  static absl::StatusOr<std::unique_ptr<StreamReceiver>> Create(MeasuredLinks& links, int from,
                                                                Bytes size, const Load& load);
  absl::Status Pump();
  bool done() const { return taken_ == total_; }
  Phase phase() const { return phase_; }
  int from() const { return from_; }
  StreamResult result() const;

 private:
  static constexpr int kParts = 10;
  StreamReceiver(MeasuredLinks& links, int from, size_t size, const Load& load);
  void Count(int64_t now);
  bool IsRight(int64_t message);

  MeasuredLinks& links_;
  const int from_;
  const size_t size_;
  const bool check_;
  const Lengths lengths_;
  Requests requests_;
  Slots slots_;
  int64_t posted_ = 0, taken_ = 0;
  int64_t total_ = INT64_MAX;                // messages and markers, once that is known
  int64_t first_ = 0, begin_ = 0, end_ = 0;  // when
  int64_t counted_ = 0, wrong_ = 0;
  std::array<int64_t, kParts> parts_{};  // messages in each tenth of the time
  Phase phase_ = Phase::kBefore;
};

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_STREAM_H_
