// A tcp link that was closed here while the other side may still miss bytes that were reported as
// sent. Its streams send them, and goodbye, on sockets that replace lost ones if need be: reported
// bytes arrive, or the other side learns at once that the link has ended.
//
// Bounds: tcp.dead_after for a lost socket's replacement; with all sockets in place, two seconds
// until the other side has closed as well.
#ifndef WEFT_NET_TCP_DEPARTURE_H_
#define WEFT_NET_TCP_DEPARTURE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/poller.h"
#include "net/tcp/resumption.h"
#include "net/tcp/stream.h"

namespace weft::net {

class Departure final : public PollHandler, private StreamOwner, private ResumptionOwner {
 public:
  struct Link {
    std::vector<std::unique_ptr<Stream>> streams;
    std::vector<bool> lost;  // by stream: `resumption` looks for another socket
    std::unique_ptr<Resumption> resumption;
    std::deque<OutFrame> last_words;  // on the first stream
    OutFrame goodbye;                 // then, on each
    bool whole = false;               // see Lingering::AwaitDelivery
    std::string name;                 // for messages
    absl::Duration dead_after;
  };
  // `on_over` is called once, from inside the poller's turn; it may DeferDelete() the departure.
  Departure(Poller& poller, Link link, std::function<void(Departure*)> on_over);
  ~Departure() override;

  // Something that was reported as sent is not with the other side's kernel.
  bool Owes() const;

 private:
  void Step(absl::Time now);
  void BeOver();
  size_t IndexOf(const Stream& stream) const;
  bool AnyLost() const;

  bool OnTurn(absl::Time now) override;  // the first moment at which the time is known
  void OnDeadline(absl::Time /*now*/) override { BeOver(); }
  absl::StatusOr<PayloadTarget> OnFrame(const FrameHeader& header) override;
  absl::Status OnFrameDone(const FrameHeader& header, absl::string_view notice) override;
  void OnSent(uint32_t /*token*/) override {}
  void OnWritable() override { WantTurn(); }
  void OnEnded(const absl::Status& why, absl::Time now) override;
  void OnLost(Stream& stream, const absl::Status& why, bool timed_out, absl::Time now) override;
  void OnResumed(Stream& stream, uint64_t again, absl::Time now) override;
  void OnNewSocket(size_t index, uint32_t epoch, FileDescriptor socket, std::string received,
                   absl::Time now) override;
  void OnNotReplaced(size_t index, const absl::Status& why, absl::Time now) override;

  Link link_;
  std::function<void(Departure*)> on_over_;  // null: it is over
  bool said_ = false;                        // goodbye was queued
  bool ended_ = false;                       // the other side has closed one of the sockets
  // Where payloads go. Streams write there over several reads: neither moves once it is used.
  std::vector<uint64_t> told_taken_;  // what a kTaken brings
  std::vector<std::byte> unwanted_;   // of another way that carried the link's data
};

}  // namespace weft::net

#endif  // WEFT_NET_TCP_DEPARTURE_H_
