// The receiving side of a multipath connection: posted receives and packets in; acknowledgements,
// credits and completions out. A state machine without I/O, the counterpart of sender.h.
//
//   Receiver receiver(options, now);
//   receiver.Post(cookie, buffer, capacity);      // the i-th takes the sender's i-th message
//   receiver.Receive(arrival, now);               // copies the chunk to its place at once
//   while (receiver.Next(now, packet)) write it;
//   poll until receiver.deadline();
//   while (receiver.TakeCompletion(done)) ...     // once a receive, in any order
//
// A chunk may come twice, late, or before others: a bit a chunk makes that harmless. A repeated
// packet is acknowledged again, but proves neither that the peer lives nor that a path works. A
// message longer than its receive fails on both sides and affects no other. Receives that were
// posted for a sender which restarted fail once ("has restarted"); later ones belong to the new
// sender.
//
// An acknowledgement takes the return path of the last arrival. A return path may be dead where the
// forward path is not, and acknowledgements are not acknowledged; but data packets name the
// acknowledgement that arrived last. With `recycles_ways` three of four acknowledgements take, in
// turn, one of the eight return paths that were named last (as REPS does with paths). A probe is
// also answered on its own return path, as its sender may know no other that works.
//
// Each arrival is echoed, with the time that it was held and its ECN mark; besides, every Ack
// carries a bitmap of all that has arrived above a base, so that a lost Ack costs nothing.
//
// Bounds: `messages` posted receives, a bit a number and a chunk, kEchoesMax echoes.
#ifndef WEFT_NET_MULTIPATH_RECEIVER_H_
#define WEFT_NET_MULTIPATH_RECEIVER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "net/multipath/packet.h"
#include "net/multipath/sender.h"

namespace weft::net::multipath {

// Where messages go that name the receive they are for (Label), instead of being matched in order
// with what is posted: their owner has agreed with the other side on what may come.
class MessageSink {
 public:
  virtual ~MessageSink() = default;
  // The first chunk of a message to arrive, not necessarily of its beginning. False: it is not
  // taken now; the next chunk asks again.
  virtual bool OnMessage(const Packet& packet) = 0;
  // Each chunk once, in any order, of messages that were taken.
  virtual void OnChunk(const Packet& packet, const std::byte* chunk, uint32_t bytes) = 0;
};

struct ReceiverOptions {
  std::string peer = "the peer";  // for people, in statuses
  uint64_t incarnation = 1;       // as SenderOptions::incarnation
  uint32_t messages = 256;        // posted at most, 1 to kMessagesMax
  int ack_every = 2;              // arrivals an acknowledgement, 1 to kEchoesMax
  absl::Duration ack_delay = absl::Microseconds(25);  // the longest one is held back
  // Receiver-driven: nothing may be sent but the first `credit` bytes and what Grant() adds.
  bool grants_credit = false;
  uint64_t credit = 0;
  bool recycles_ways = false;
  // Instead of Post(): the cookie of a completion is the message's number.
  MessageSink* sink = nullptr;
  absl::Duration give_up = absl::Seconds(30);  // of silence; several of the sender's keepalives
};

struct Arrival {
  const Packet& packet;
  const std::byte* chunk = nullptr;  // null: a message without contents (the simulator)
  uint32_t chunk_bytes = 0;
  bool marked = false;                     // ECN: congestion experienced
  bool trimmed = false;                    // the chunk was cut off
  absl::Time at = absl::InfiniteFuture();  // when it arrived; `now` if that is earlier
};

class Receiver {
 public:
  Receiver(const ReceiverOptions& options, absl::Time now);

  // False: as many as may be are posted; again after a completion. On a connection that is closed
  // or broken the receive fails at once, by a completion. The buffer must stay until then.
  bool Post(uint64_t cookie, std::byte* buffer, uint64_t capacity);
  void Receive(const Arrival& arrival, absl::Time now);
  // The next packet to be written; false: none before deadline(), a Receive(), Post() or Grant().
  bool Next(absl::Time now, Packet& packet);
  // Likewise an acknowledgement of what has come, due or not, for one that leaves with something
  // else: of AckBytes() bytes. False: there is none to be given.
  bool TakeAck(absl::Time now, Packet& packet);
  size_t AckBytes() const;
  absl::Time deadline() const { return deadline_; }
  // Longest time for which an acknowledgement of later arrivals is held back.
  void set_ack_delay(absl::Duration delay) { options_.ack_delay = delay; }
  // Holds back no acknowledgement of what has come: the next Next() gives it.
  void AcknowledgeNow() { acks_now_ |= !echoes_.empty(); }
  bool TakeCompletion(Completion& completion);  // bytes: of the message that came
  // Whether this chunk belongs to a message of which one was taken, and has not come yet.
  bool IsMissing(uint64_t message, uint64_t offset, uint64_t bytes);

  // Receiver-driven: the sender may send so many bytes in all.
  void Grant(uint64_t credit);
  uint64_t demand() const { return demand_; }  // what it wants to have sent in all
  // Stops for good: what is posted fails with kCancelled, and the sender is told.
  void Close();

  ConnectionState state() const { return state_; }  // kConnecting: no sender has come yet
  uint64_t peer_incarnation() const { return peer_; }
  absl::Time heard_at() const { return heard_at_; }

 private:
  struct Posted {
    uint64_t cookie = 0;
    std::byte* buffer = nullptr;
    uint64_t capacity = 0;
    uint64_t length = 0;
    uint32_t arrived = 0, chunks = 0;
    bool is_begun = false, is_done = true;
    std::vector<uint64_t> bits;
  };
  enum class Verdict : uint8_t { kTaken, kRefused, kIgnored };

  Posted& At(uint64_t message) { return posted_[message % posted_.size()]; }
  void OnHello(const Packet& packet, absl::Time now);
  void OnData(const Arrival& arrival, absl::Time at);
  Verdict Take(const Arrival& arrival);
  Verdict TakeAddressed(const Arrival& arrival);
  Verdict TakeChunk(const Arrival& arrival, Posted& posted);
  void OnFinish(const Packet& packet);
  void Answer(const Packet& packet, ResetReason reason);
  bool IsNew(uint64_t number);
  void Note(uint64_t number, uint64_t floor);
  void Echoes(uint64_t number, uint8_t flags, absl::Time now);
  void FillCommon(Packet& packet) const;
  void FillAck(absl::Time now, Packet& packet);
  uint64_t WordsArrived() const;  // of an acknowledgement
  void NoteWay(uint16_t heard);
  PathId WayBack();
  void Complete(Posted& posted, absl::Status status);
  void FailAll(const absl::Status& status);

  ReceiverOptions options_;
  ConnectionState state_ = ConnectionState::kConnecting;
  absl::Status status_;
  uint64_t peer_ = 0;
  uint32_t chunk_ = 0;
  std::vector<Posted> posted_;  // a ring
  uint64_t done_floor_ = 0, posted_next_ = 0;
  std::set<uint64_t> refused_;  // messages of which the sender may still ask
  uint64_t credit_, demand_ = 0;

  // Numbers.
  std::vector<uint64_t> arrived_;  // a ring of bits
  uint64_t base_ = 1, highest_ = 0;

  struct Held {
    Echo echo;
    absl::Time at;
  };
  std::vector<Held> echoes_;
  bool acks_now_ = false, welcomes_ = false, finishes_ = false;
  absl::Time ack_at_ = absl::InfiniteFuture();
  std::optional<Packet> reset_;
  PathId path_ = 0;               // of the newest arrival
  std::array<PathId, 8> ways_{};  // that were heard last
  size_t ways_known_ = 0, ways_next_ = 0;
  static constexpr size_t kProbedMax = 64;
  std::vector<PathId> probed_;  // that are still to be answered on
  uint16_t heard_ = 0;          // the newest of them, as Packet::heard
  uint64_t answers_ = 0;
  absl::Time heard_at_;
  absl::Time deadline_ = absl::InfiniteFuture();
  std::deque<Completion> completions_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_RECEIVER_H_
