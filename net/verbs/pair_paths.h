// Connected queue pairs as paths of multipath links: the wire of sockets
// (net/multipath/udp/wire.h) with a NIC under it, which cuts, checks and delivers packets.
//
//   unreliable (UC)  recovers none: a lost packet costs that packet, and nobody is told
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
// When not all stand and nothing comes over the others for verbs.give_up_after, or the devices of
// all have failed, the link breaks and says why. Driven by the transport's poller and
// Rails::Poll(); not thread-safe.
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
  PairPaths(PairPort& port, DatagramOwner& owner, uint32_t link);
  ~PairPaths() override;

  absl::Status Describe(Address& own) override;
  absl::StatusOr<Facts> Connect(const Address& peer) override;
  bool IsOpen() const override;
  std::string Repair() override;
  absl::Status OnRepair(absl::string_view words) override;
  absl::Time deadline() const override;
  PathId Carrier(PathId path) const override;
  bool CanSend() override;
  void Queue(PathId path, absl::Span<const std::byte> header,
             absl::Span<const std::byte> chunk) override;
  void Flush() override;
  bool NoteMalformed() override { return port_.statistics_.malformed++ == 0; }
  const absl::Status& status() const override { return status_; }
  std::string Suspicion() const override;

 private:
  friend class PairPort;
  enum class State : uint8_t {
    kLost,
    kMade,       // and does not know the peer's
    kConnected,  // and receives; whether the peer's does it has not said
    kReady,
  };
  struct PairAddress;
  struct Word;
  struct Path {
    State state = State::kLost;
    std::unique_ptr<RailQueuePair> pair;  // null: lost
    uint32_t generation = 0;
    uint32_t psn = 0;
    uint16_t source_port = 0;
    uint32_t next = 0;                              // numbers of work requests, 31 bits
    std::deque<uint32_t> in_flight;                 // slots, by number from next - size() on
    std::vector<uint32_t> batch;                    // slots, not yet posted
    std::vector<uint32_t> lengths;                  // of the batch
    absl::Time moved_at;                            // something completed, or nothing was in flight
    absl::Time made_at, renew_at;                   // the latter: lost
    absl::Duration pause;                           // before it
    bool says_address = false, says_ready = false;  // by the next Repair()

    bool IsFull() const { return in_flight.size() + batch.size() >= kPairSendDepth; }
  };

  absl::Status Make(size_t index);
  PairAddress AddressOf(const Path& path);
  absl::Status ConnectTo(const PairAddress& peer, size_t index);
  absl::Status TakeWord(const Word& word);
  bool IsStuck(const Path& path) const;
  void Post(size_t index);
  void Drop(Path& path);
  void Lose(size_t index, const std::string& why);
  void LoseStuck(int rail);
  void LookForSilence();
  void OnCompletion(int lane, bool receive, uint32_t number, const NicCompletion& what) override;
  void OnQueuePairLost(int lane, const std::string& why) override;

  PairPort& port_;
  DatagramOwner& owner_;
  const uint32_t link_;
  Random random_;
  std::vector<Path> paths_;
  size_t usable_ = 0;        // the first so many of paths_ lead to the peer
  bool is_blocked_ = false;  // and in the port's list
  std::string peer_text_;
  absl::Time heard_at_;
  std::vector<PathId> dirty_;  // with a batch
  absl::Status status_;
};

}  // namespace weft::net::multipath

#endif  // WEFT_NET_VERBS_PAIR_PATHS_H_
