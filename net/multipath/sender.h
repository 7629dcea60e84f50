// The sending side of a multipath connection: messages in, packets out; acknowledgements in,
// completions out. A state machine without I/O: no socket, no clock, no thread. The receiving side
// is receiver.h, their packets are in packet.h.
//
//   Sender sender(options, now);
//   sender.Send(cookie, data, size);              // the i-th matches the receiver's i-th Post()
//   while (sender.Next(now, out)) write out;      // until the wire is full or it returns false
//   sender.Receive(packet, now);                  // for each packet that arrives
//   poll until sender.deadline();                 // then Next() again
//   while (sender.TakeCompletion(done)) ...       // once a message, in any order
//
// Connection. Hello and Welcome exchange incarnations, numbers that only rise from one life of a
// process to the next; every packet carries both, so that nothing of an earlier life is ever taken
// for one of this. A receiver that does not know the sender answers Reset: outstanding messages
// then fail once (kUnavailable, "has restarted"), since it is unknown which of them had arrived,
// and the connection is made anew for later messages.
//
// Flow. A message leaves only once its receive is posted (messages, in Ack), so that nothing
// unexpected is ever buffered; with credits, bytes leave only as far as the receiver has granted.
// The congestion controller bounds what is in flight, the pacer when it leaves, the path policy
// where. However slow a pace the controller asks for (a window far below a packet, a round trip
// from before a path came back), a packet may leave each timeout_max: as often as without any
// answer.
//
// Recovery. flight.h says what is lost; a lost chunk goes again first, under a new number, maybe on
// another path. When nothing at all is heard for a probe timeout (srtt + 4 rttvar and what the peer
// may hold), one chunk goes out as a probe (TLP, RFC 8985); the next time, everything in flight is
// taken for lost, and the timeout doubles each time after that, up to a bound. Where half of the
// paths have died, there and back, three of four such probes are lost as well: with `probes_all`
// each timeout asks on every path.
//
// Bounds: `messages` outstanding messages, `numbers` packets between the oldest unresolved and the
// newest, a bit a chunk of each outstanding message. Nothing else grows.
//
// The bytes of a message must stay until its completion. A null `data` sends a message without
// contents (the simulator).
#ifndef WEFT_NET_MULTIPATH_SENDER_H_
#define WEFT_NET_MULTIPATH_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "net/cc/base_rtt.h"
#include "net/cc/controller.h"
#include "net/cc/pacer.h"
#include "net/cc/registry.h"
#include "net/multipath/flight.h"
#include "net/multipath/packet.h"
#include "net/paths/path_set.h"
#include "net/paths/policy.h"

namespace weft::net::multipath {

struct SenderOptions {
  std::string peer = "the peer";  // for people, in statuses
  // Not 0, and above every incarnation that a process with this address ever had: as the time of
  // its start in nanoseconds. A reset takes the next one.
  uint64_t incarnation = 1;
  uint32_t chunk = 4096;    // bytes, kChunkMin to kChunkMax
  uint32_t overhead = 128;  // bytes on the wire besides a chunk's
  uint32_t numbers = 1024;  // a power of two, 64 to kNumbersMax
  uint32_t messages = 256;  // 1 to kMessagesMax
  Bytes window_max{0};      // in flight, whatever the controller says; 0: as it says
  PathFacts facts;          // facts.packet: chunk + overhead
  // facts.base_rtt is only the least that it may be: the controller is told of the one that shows.
  bool measures_base_rtt = false;
  ControllerSpec controller;
  PathSetOptions paths;
  // A path slower than the others is given so much longer, and what went down with a path is no
  // congestion of the others.
  bool weighs_paths = false;
  bool probes_all = false;
  PolicyOptions policy;
  Bytes piece{0};  // bytes on one path before the policy is asked again
  absl::Duration burst = absl::ZeroDuration();       // the pacer's
  absl::Duration held_max = absl::Microseconds(25);  // the receiver's ack_delay
  absl::Duration timeout_min = absl::Milliseconds(1), timeout_max = absl::Seconds(1);
  absl::Duration keepalive = absl::Seconds(1);  // an idle connection is probed as often
  absl::Duration give_up = absl::Seconds(30);   // of silence, while something is wanted
};

struct Completion {
  uint64_t cookie = 0;
  uint64_t bytes = 0;  // of the message
  absl::Status status;
};

// What every chunk of a message carries for the receiver's owner; see Packet.
struct Label {
  uint64_t receive = 0, control = 0;
};

struct Outgoing {
  Packet packet;
  const std::byte* chunk = nullptr;
  uint32_t chunk_bytes = 0;
  bool is_retransmission = false;
};

enum class ConnectionState : uint8_t { kConnecting, kOpen, kClosed, kBroken };

struct SenderStatistics {
  int64_t packets = 0, retransmissions = 0, timeouts = 0, tail_probes = 0, spurious = 0;
  int64_t paths_left = 0, paths_back = 0, handshakes = 0, marks = 0;
};

// What one path has carried.
struct PathTally {
  uint64_t bytes = 0;  // on the wire, that arrived
  uint64_t lost = 0;   // packets of chunks, which went again
};

class Sender {
 public:
  Sender(const SenderOptions& options, absl::Time now);

  // False: as many messages as may be are outstanding; again after a completion. On a connection
  // that is closed or broken the message fails at once, by a completion.
  // Messages of control overtake those of data that have not left yet.
  bool Send(uint64_t cookie, const std::byte* data, uint64_t size, Label label = {});
  // Forgets what is outstanding of the cookies for which `which` is true: there is no completion,
  // and no byte of it is read again. The receiver never gets the whole.
  void CancelIf(absl::FunctionRef<bool(uint64_t cookie)> which);
  // From now on the policy is `planned`, over these paths.
  void FollowPlan(std::vector<PathId> planned, std::vector<PathId> spare);
  // No more messages: once all have ended, the receiver is told, and state() becomes kClosed.
  void Close() { is_closing_ = true; }

  // `at`: when it arrived, where the wire knows that better than `now`.
  void Receive(const Packet& packet, absl::Time now) { Receive(packet, now, now); }
  void Receive(const Packet& packet, absl::Time now, absl::Time at);
  // When something was heard of the peer last.
  absl::Time heard_at() const { return heard_at_; }
  // The next packet to be written; false: none before deadline(), a Receive() or a Send().
  bool Next(absl::Time now, Outgoing& out);
  // As of the last Next() that returned false.
  absl::Time deadline() const { return deadline_; }
  bool TakeCompletion(Completion& completion);

  ConnectionState state() const { return state_; }
  const absl::Status& status() const { return status_; }  // kBroken: why
  size_t outstanding() const { return message_next_ - message_floor_; }
  const Controller& controller() const { return *controller_; }
  absl::Duration base_rtt() const { return base_rtt_.value(); }
  const PathSet& paths() const { return paths_; }
  const Flight& flight() const { return flight_; }
  const PathTally& tally(PathId path) const { return tallies_[path]; }
  const SenderStatistics& statistics() const { return statistics_; }

 private:
  struct Message {
    uint64_t cookie = 0;
    const std::byte* data = nullptr;
    uint64_t size = 0;
    Label label;
    uint32_t chunks = 0;
    uint32_t next = 0;     // chunks from here on were never sent
    uint32_t arrived = 0;  // chunks
    bool is_done = true;
    std::vector<uint64_t> bits;    // a chunk's: arrived
    std::vector<uint64_t> queued;  // likewise: waits in lost_
  };
  struct Chunk {
    uint64_t message;
    uint32_t index;
  };

  Message& At(uint64_t message) { return messages_[message % messages_.size()]; }
  uint32_t SizeOf(const Message& message, uint32_t chunk) const;
  bool IsWanted(const Chunk& chunk);
  uint64_t Demand() const { return sent_bytes_ + unsent_bytes_ + lost_bytes_; }

  // Into packets. sender.cc
  bool PickLost(Chunk& chunk);
  bool PickNew(Chunk& chunk);
  bool MaySend(uint32_t bytes);
  Bandwidth Pace() const;
  void Fill(const Chunk& chunk, absl::Time now, bool again, Outgoing& out);
  void FillProbe(PathId path, absl::Time now, Outgoing& out);
  Packet Header(PacketType type) const;
  bool NextData(absl::Time now, Outgoing& out);
  bool NextTailProbe(absl::Time now, Outgoing& out);
  bool NextSilenceProbe(absl::Time now, Outgoing& out);
  bool NextIdleProbe(absl::Time now, Outgoing& out);
  bool NextHello(absl::Time now, Outgoing& out);
  bool NextFinish(absl::Time now, Outgoing& out);
  void SetDeadline(absl::Time now);

  // From packets. sender_receive.cc
  void OnWelcome(const Packet& packet, absl::Time now);
  void OnAck(const Packet& packet, absl::Time now);
  bool OnEcho(const Echo& echo, absl::Time now);
  void OnReset(const Packet& packet, absl::Time now);
  void OnArrived(Sent& sent, absl::Duration rtt, absl::Duration held, bool marked, absl::Time now);
  void MeasureBaseRtt(const Sent& sent, absl::Duration rtt, absl::Time now);
  void OnLost(const Sent& sent, PathLoss loss, absl::Time now);
  void DetectLosses(absl::Time now);
  void OnSilence(absl::Time now);
  bool Credit(const Packet& packet);
  void Complete(Message& message, absl::Status status);
  void FailAll(const absl::Status& status);
  void Break(absl::Status status);
  void Connect(absl::Time now);
  absl::Duration Timeout() const;

  const SenderOptions options_;
  ConnectionState state_ = ConnectionState::kConnecting;
  absl::Status status_;
  bool is_closing_ = false;
  uint64_t incarnation_, peer_ = 0;
  uint64_t seed_;  // of the policy; another for each connection
  std::unique_ptr<Controller> controller_;
  BaseRtt base_rtt_;
  Pacer pacer_;
  PathSet paths_;
  std::vector<PathTally> tallies_;  // [path]
  PathChooser chooser_;
  Flight flight_;
  std::vector<Message> messages_;  // a ring
  uint64_t message_floor_ = 0, message_next_ = 0, message_cursor_ = 0;
  uint64_t messages_allowed_ = 0;  // by posted receives
  uint64_t message_window_ = 1;
  uint64_t credit_ = 0, sent_bytes_ = 0, unsent_bytes_ = 0, lost_bytes_ = 0;
  std::deque<Chunk> lost_;       // to be sent again; each chunk once
  std::deque<uint64_t> urgent_;  // messages of control that have chunks to be sent
  std::deque<Completion> completions_;

  uint16_t heard_ = 0;    // of the newest acknowledgement, as Packet::heard
  int64_t lost_now_ = 0;  // bytes, in one detection
  int backoff_ = 0;       // of the probe timeout
  int timeouts_ = 0;      // in a row
  int idle_probes_ = 0;   // likewise
  bool probes_tail_ = false;
  int probe_next_ = 0, probes_due_ = 0;  // with probes_all: paths from the one on
  absl::Time progress_at_, heard_at_, sent_at_, arrived_at_;
  absl::Time wanted_since_;                     // since when there was something to wait for
  absl::Time greet_at_ = absl::InfinitePast();  // the next Hello or Finish
  absl::Time deadline_ = absl::InfinitePast();
  SenderStatistics statistics_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_SENDER_H_
