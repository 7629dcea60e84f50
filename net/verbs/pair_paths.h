// Connected queue pairs as paths of multipath links: the wire of sockets
// (net/multipath/udp/wire.h) with a NIC under it, which cuts, checks and delivers packets.
//
//   unreliable (UC)  recovers none: a lost packet is lost, and not reported
//   reliable (RC)    sends again itself what a path loses, in order, so that one loss holds up all
//                    behind it on that path; a path that stays dead is a queue pair that fails.
//                    What takes too long is sent again on another path all the same, and the copy
//                    that comes second is dropped: both are one protocol.
//
// A path is a queue pair of the link's own, with a UDP source port of its own. A packet of the
// protocol is one message, sent whole and received whole or not at all, into one of the receives
// that all links share (pair_port.h); decision 8 says why messages and not writes.
//
// Queue pairs that fail are replaced, at first at once, then with pauses; meanwhile the next one
// takes their share. Both ends make a new one, with a source port drawn anew, and tell each other
// over the link's connection. Pairs of a path have generations, and those of the same at both ends
// belong together: an end that loses its own begins the next, an end that hears of a later one
// follows. Nothing is sent on a queue pair before the other end has said that its own receives.
//
// An unreliable queue pair never reports that its path is dead, and a reliable one reports it late.
// An end whose sender has left a path for verbs.stall_after, and has probed it in vain, asks the
// other end, one path at a time. The other end gives the queue pair up, as if it had failed, if
// nothing has arrived on it either while packets arrived on others; else nothing happens. So
// neither a busy end nor a stopped one costs queue pairs.
//
// The link breaks, and says why, when the devices of all paths have failed, or when a path is
// missing and nothing comes over the others for verbs.give_up_after, not counting time for which
// this process was stopped (process_stall.h). Driven by the transport's poller and Rails::Poll();
// not thread-safe.
#ifndef WEFT_NET_VERBS_PAIR_PATHS_H_
#define WEFT_NET_VERBS_PAIR_PATHS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "net/multipath/udp/link_paths.h"
#include "net/verbs/pair_port.h"

namespace weft::net::multipath {

class PairPaths final : public LinkPaths, private QueuePairUser {
 public:
  PairPaths(PairPort& port, DatagramOwner& owner, uint32_t link, const LinkEnds& ends);
  ~PairPaths() override;

  absl::Status Describe(Address& own) override;
  absl::StatusOr<Facts> Connect(const Address& peer) override;
  bool IsOpen() const override;
  std::string Repair(const PathSet& known) override;
  absl::Status OnRepair(absl::string_view words) override;
  absl::Time deadline() const override;
  PathId Carrier(PathId path) const override;
  bool CanSend() override;
  void Queue(PathId path, absl::Span<const std::byte> header,
             absl::Span<const std::byte> chunk) override;
  void Flush() override;
  size_t JoinedMost() const override { return joined_most_; }
  void OnHeard(PathId path) override;
  bool NoteMalformed() override { return port_.statistics_.malformed++ == 0; }
  const absl::Status& status() const override { return status_; }
  std::string Suspicion() const override;

 private:
  friend class PairPort;
  enum class State : uint8_t {
    kLost,
    kMade,  // and does not know the peer's
    kConnecting,
    kConnected,  // and receives; whether the peer's does it has not said
    kReady,
  };
  // What a side says of one queue pair, as it lies on the wire, little-endian.
  struct PairAddress {
    uint32_t queue_pair = 0, psn = 0;
    uint16_t lid = 0;
    uint8_t ethernet = 0, zero = 0;
    uint32_t mtu = 0;
    Gid gid{};
  };
  struct Word;
  struct Path {
    State state = State::kLost;
    std::unique_ptr<RailQueuePair> pair;  // null: lost
    uint32_t generation = 0;
    uint32_t psn = 0;
    uint16_t source_port = 0;
    uint32_t next = 0;                            // numbers of work requests, 31 bits
    std::deque<uint32_t> in_flight;               // slots, by number from next - size() on
    std::vector<uint32_t> batch;                  // slots, not yet posted
    std::vector<uint32_t> lengths;                // of the batch
    bool is_open = false;                         // the last of it may be followed in its slot
    absl::Time moved_at;                          // something completed, or nothing was in flight
    absl::Time made_at, renew_at;                 // the latter: lost
    absl::Duration pause;                         // before it
    absl::Time heard_at;                          // of a packet that came over it, or ready
    absl::Time left_at = absl::InfiniteFuture();  // the sender has left it since,
    uint32_t left_next = 0;                       // and `next` was that
    absl::Time asked_at = absl::InfinitePast();   // whether the other end hears anything of it
    // By the next Repair().
    bool says_address = false, says_ready = false, asks = false;
    bool peer_is_ready = false;  // and this end is kConnecting

    bool IsFull() const { return in_flight.size() + batch.size() >= kPairSendDepth; }
  };

  absl::Status Make(size_t index);
  PairAddress AddressOf(const Path& path);
  absl::Status ConnectTo(const PairAddress& peer, size_t index);
  void BecomeReady(size_t index);
  void Renew(size_t index, uint32_t generation);
  absl::Status TakeWord(const Word& word);
  void LookForSilentPaths(const PathSet& known);
  void AnswerForSilentPath(size_t index);
  bool IsStuck(const Path& path) const;
  void Post(size_t index);
  void Drop(Path& path);
  void Lose(size_t index, const std::string& why);
  size_t HeldInVain(size_t index, int rail) const;  // slots of the rail
  void LoseStuck(size_t index);
  void LookForSilence();
  absl::Time GivesUpAt() const;  // if nothing is heard by then, while queue pairs are missing
  void OnCompletion(int lane, bool receive, uint32_t number, const NicCompletion& what) override;
  void OnQueuePairLost(int lane, const std::string& why) override;
  void OnConnected(int lane, const absl::Status& status) override;

  PairPort& port_;
  DatagramOwner& owner_;
  const uint32_t link_;
  Random random_;
  QueuePairWays ways_;
  std::vector<Path> paths_;
  size_t usable_ = 0;        // the first so many of paths_ lead to the peer
  size_t joined_most_ = 0;   // bytes of a message of several packets
  bool is_blocked_ = false;  // and in the port's list
  std::string peer_text_;
  absl::Time heard_at_;
  absl::Time missing_since_ = absl::InfiniteFuture();  // when a path went missing, plus stalls
  absl::Time look_due_ = absl::InfiniteFuture();       // at that
  size_t asked_ = 0;  // the path that was asked for last, and of which generation
  uint32_t asked_generation_ = 0;
  std::vector<PathId> dirty_;  // with a batch
  absl::Status status_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_VERBS_PAIR_PATHS_H_
