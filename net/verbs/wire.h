// Carries a link's entries over RDMA: its queue pairs ("lanes"), the ring of entries each way, and
// their repair. Entries: entry.h. The wire delivers each entry that was given to it exactly once,
// whatever becomes of single queue pairs, or ends with a status that says what was tried.
//
// How: entries are numbered, and kept until the other side has acknowledged them. The memory of an
// entry's payload is needed only until the device reports it delivered, since bytes that a reliable
// connection has acknowledged lie in the other side's memory. When a queue pair fails on either
// side, both end it, so that nothing of it writes memory any more; each looks into its ring for
// entries that came and were not reported; then they tell each other which have arrived (the
// record), and the rest is sent again on any lane. A completion that never comes is noticed the
// same way: after verbs.stall_after the other side is asked for its record. Failed lanes are made
// anew, on the next source port and the next rail; one that comes back is used again.
#ifndef WEFT_NET_VERBS_WIRE_H_
#define WEFT_NET_VERBS_WIRE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "net/tcp/poller.h"
#include "net/verbs/entry.h"
#include "net/verbs/lane.h"
#include "net/verbs/path_search.h"
#include "net/verbs/queue_pair_ways.h"
#include "net/verbs/rails.h"

namespace weft::net {

class VerbsFlush;

// What all wires of one transport share.
struct VerbsShared {
  std::shared_ptr<Rails> rails;
  VerbsFlush* flush = nullptr;
  absl::Time now;  // of this turn
  std::string host;
  int self = 0;  // rank
  PlannedWays ways;
};

class VerbsWireOwner {
 public:
  virtual ~VerbsWireOwner() = default;
  // Once for each entry; on a following wire in any order, on a leading one in the sender's. kEager
  // and kMismatch come after all that was sent before them. The payload is good during the call. An
  // error breaks the link.
  virtual absl::Status OnEntry(const EntryHeader& header, const std::byte* payload) = 0;
  // Once: the other side's memory has it, whatever becomes of the queue pair. The payload's is
  // free.
  virtual void OnDelivered(uint32_t token) = 0;
  virtual void OnRoom() = 0;  // once after each turn: room may be there again
  virtual void SendControl(std::string bytes) = 0;
  virtual void OnEagerDiffers(bool /*too_long*/, const std::string& /*why*/) {
  }                                                        // leading: the other side says so
  virtual void FillTaken(EntryHeader* /*taken*/) {}        // what else an entry kTaken can say
  virtual void OnWireBroken(const absl::Status& why) = 0;  // from the poller
};

class VerbsWire final : public Handler, private QueuePairUser {
 public:
  static constexpr uint32_t kNoToken = ~0u;

  VerbsWire(Poller& poller, VerbsShared& shared, VerbsWireOwner& owner, bool leads, int peer);
  ~VerbsWire() override;

  // Once the tcp connection stands. `ports`: planned UDP source ports of this side.
  absl::Status Begin(absl::Span<const uint16_t> ports);
  absl::Status OnControl(absl::string_view bytes);

  bool HasRoom() const { return ready_ && next_ - taken_ + kReserved < kRingSlots && !closed_; }
  // Needs room. Data of a piece: `payload` of `header.length` bytes goes to `header.address` before
  // the entry, and stays in place until OnDelivered(token); null: all is in the entry.
  void Send(EntryHeader header, const std::byte* payload, uint32_t token);
  // `small`, kEntryPayloadMax at most (kEager: eager_max()), travels in the entry.
  void SendSmall(EntryHeader header, absl::string_view small, uint32_t token);
  // The same to `header.address`: what lies in no registered memory, kEntryPayloadMax at most.
  void SendCopy(const EntryHeader& header, absl::string_view small, uint32_t token);
  // What was just sent is posted at once, not at the next turn, unless something waits before it.
  void PostAtOnce();
  // The other side has closed the link: nothing is said any more, and nothing is given up for it.
  void FallSilent() { silent_ = true; }
  // Bytes of the longest eager message that both sides allow; 0: none, or not ready.
  size_t eager_max() const { return eager_max_; }

  void WakeUp() { WantTurn(); }  // for a turn, and OnRoom()
  void WakeAt(absl::Time when);  // at the latest
  // By an entry kTaken, as soon as there is room for one.
  void SayTaken() {
    if (!silent_ && !std::exchange(word_wanted_, true)) WantTurn();
  }
  bool ready() const { return ready_; }
  const absl::Status& failure() const { return failure_; }  // OK, or what OnWireBroken() will say
  int lanes() const { return wanted_; }
  // Bytes, of which the slowest queue pair has two acknowledged within Lane::kDelayTarget.
  size_t PieceMost() const;
  std::string Describe() const;  // "2 queue pairs: mlx5_0 0x12 -> 0x34 port 50000, ..."
  std::vector<LaneReport> Lanes() const;
  void AddTo(FlowCounters* counters) const;  // repeats, and the longest round trip of a lane
  Rails& rails() const { return *shared_.rails; }

  // Destroys the queue pairs: no byte of the owner's memory is read or written afterwards.
  void Close();

  bool OnTurn(absl::Time now) override;
  void OnDeadline(absl::Time now) override;

 private:
  // Slots that only kTaken may use, so that two full rings can still tell each other.
  static constexpr uint64_t kReserved = 8;
  static constexpr int kSpareLanes = 4;

  struct Out {
    const std::byte* payload = nullptr;
    uint64_t length = 0;        // of the payload that is written beside the entry
    uint32_t token = kNoToken;  // until it is delivered
    int lane = -1;              // posted on; -1: waits in queue_
    bool delivered = false;     // the device says so
    bool arrived = false;       // the other side says so
    absl::Time since;           // when posted; once delivered, when that was
  };

  // Sending (wire.cc).
  Out& out(uint64_t number) { return outs_[number % kRingSlots]; }
  EntryHeader* image(uint64_t number);
  const std::byte* arrived(uint64_t number) const;  // where it lies
  bool ComesInOrder(uint64_t number) const;
  void Enqueue(const EntryHeader& header, const std::byte* payload, uint64_t length,
               absl::string_view small, uint32_t token);
  void Flush(bool in_turn);
  absl::Status Post(uint64_t number, int lane);
  void NoteDelivered(Out& entry);
  void GoLive(int lane);
  bool MaySayWord() const;
  void SayWhatWasTaken();
  absl::Status NoteTaken(uint64_t below);

  // Receiving (wire.cc).
  void OnCompletion(int lane, bool receive, uint32_t number, const NicCompletion& what) override;
  void OnQueuePairLost(int lane, const std::string& why) override;
  void OnConnected(int lane, const absl::Status& status) override;  // (wire_controls.cc)
  void OnArrival(uint32_t immediate);
  void Arrived(uint64_t number);
  void TakeUnreported(int lane, int rail);
  absl::Status Take(uint64_t number);
  bool Replenish(Lane& lane);

  // What both sides say over the connection (wire_controls.cc).
  Control LaneControl(ControlKind kind, int lane) const;
  absl::Status OnHello(const Control& control, const std::string& text);
  absl::Status OnLaneControl(const Control& control, const std::string& text);
  absl::Status OnOffer(const Control& control);
  absl::Status OnAnswer(const Control& control);
  void Refuse(int lane, absl::string_view why);
  void Say(const Control& control, absl::string_view text = "");

  // Lanes and their repair (wire_lanes.cc).
  void OfferLane(int lane);
  int RailFor(int lane, uint32_t epoch, int preferred) const;
  double RateLike(int rail) const;
  absl::Status MakePair(int lane, uint32_t epoch, int rail);
  absl::Status ConnectPair(int lane, const Control& remote);
  void LaneFailed(int lane, const std::string& why);
  void EndPair(int lane);
  void RetirePair(int lane);
  void Requeue(int lane, const ArrivalRecord& record);
  absl::Status OnTell(const Control& control);
  std::string LaneText(const Lane& lane) const;

  // Which lanes there are (wire_paths.cc).
  void BeginTrial(int lane);
  void EndTrials(absl::Time now);
  int Carrying() const;
  bool IsUp(int rail) const;
  void MaintainLanes();
  void MakeSpare(int lane);
  void StopRetrying(Lane& lane);
  uint64_t BytesAcross() const;
  void Search();
  void StopSearch();
  int SlowestBut(int lane) const;
  int ChooseLane(uint64_t bytes) const;
  double BacklogSeconds(int without) const;

  // Time (wire_time.cc).
  void Watch();  // sets the deadline
  void Retry(Lane& lane);
  void LookForStalls(absl::Time now);
  void Tell();
  bool Hopeless(absl::Time now) const;
  void GiveUp();
  void Fail(const absl::Status& why);
  int LiveLanes() const;
  bool Outstanding() const { return taken_ != next_; }

  VerbsShared& shared_;
  VerbsWireOwner& owner_;
  const bool leads_;
  const int peer_;
  const absl::Duration look_every_;  // at what has not been acknowledged
  const uint64_t token_;             // that entries for this side carry
  std::vector<uint16_t> ports_;
  QueuePairWays ways_;
  bool begun_ = false, ready_ = false, closed_ = false;
  std::string peer_text_;    // host and devices
  Control hello_;            // the other side's
  std::vector<Lane> lanes_;  // as many as are wanted, and spares
  int wanted_ = 0;
  PathSearch search_;
  int candidate_ = -1;  // the lane that it tries
  bool candidate_carries_ = false;

  // kRingSlots slots for what comes, and behind them as many for what goes.
  struct alignas(64) Line {
    std::array<std::byte, 64> bytes;
  };
  std::unique_ptr<Line[]> ring_;  // NOLINT: its length is drawn up when it begins
  size_t in_slot_ = kEntryBytes, out_slot_ = kEntryBytes, remote_slot_ = kEntryBytes;  // bytes
  size_t eager_max_ = 0;
  const MemoryCache::Entry* ring_keys_ = nullptr;

  // Sent: [taken_, next_), of which queue_ waits for a lane.
  std::array<Out, kRingSlots> outs_;
  std::deque<uint64_t> queue_;
  uint64_t next_ = 0, taken_ = 0;
  // Received.
  ArrivalRecord in_;
  uint64_t told_ = 0;  // in_.base, as far as the other side knows
  // When it is told of what came since, other than kTaken, if nothing goes there before.
  absl::Time word_due_ = absl::InfiniteFuture();
  bool word_wanted_ = false, silent_ = false;
  int rounds_behind_ = 0;                          // see OnTurn()
  std::vector<std::pair<int, std::string>> lost_;  // lanes, outside of a turn, and why

  // Trouble.
  absl::Time trouble_since_ = absl::InfiniteFuture();
  std::string last_failure_;  // which lane, and how
  NicStatus last_status_ = NicStatus::kOk;
  int pairs_made_ = 0;
  uint32_t ask_ = 0;
  absl::Time asked_at_ = absl::InfinitePast();
  bool ask_open_ = false;
  uint32_t asked_ = 0;  // the other side's question, 0: answered
  uint64_t asked_mark_ = 0;
  absl::Status failure_;
  absl::Time wake_at_ = absl::InfiniteFuture();  // the deadline that is set
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_WIRE_H_
