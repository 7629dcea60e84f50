// Carries a link's entries (entry.h) over RDMA. The wire delivers each entry that was given to it
// exactly once, whatever becomes of single queue pairs, or ends with a status that says what was
// tried. Its parts: the memory of entries (entry_ring.h), what was sent (sent_entries.h) and what
// arrived (record.h), the queue pairs (lane_set.h), how many there are (lane_selection.h), and
// which of them an entry goes on (striping.h).
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

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/poller.h"
#include "net/verbs/entry.h"
#include "net/verbs/entry_ring.h"
#include "net/verbs/lane_selection.h"
#include "net/verbs/lane_set.h"
#include "net/verbs/record.h"
#include "net/verbs/sent_entries.h"
#include "net/verbs/wire_shared.h"
#include "net/verbs/wire_trouble.h"

namespace weft::net {

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

class VerbsWire final : public PollHandler, public PathFollower, private LaneSetOwner {
 public:
  static constexpr uint32_t kNoToken = SentEntry::kNoToken;

  VerbsWire(Poller& poller, VerbsShared& shared, VerbsWireOwner& owner, bool leads, int peer);
  ~VerbsWire() override;

  // Once the tcp connection stands. `ports`: planned UDP source ports of this side.
  absl::Status Begin(absl::Span<const uint16_t> ports);
  absl::Status OnControl(absl::string_view bytes);

  bool HasRoom() const {
    return ready_ && sent_.outstanding() + kReserved < kRingSlots && !closed_;
  }
  // Needs room. Data of a piece: `payload` of `header.length` bytes goes to `header.address` before
  // the entry, and stays in place until OnDelivered(token); null: all is in the entry.
  void Send(EntryHeader header, const std::byte* payload, uint32_t token);
  // `small`, PayloadMost() at most, travels in the entry.
  void SendSmall(EntryHeader header, absl::string_view small, uint32_t token);
  // The same to `header.address`: what lies in no registered memory, kEntryPayloadMax at most.
  void SendCopy(const EntryHeader& header, absl::string_view small, uint32_t token);
  // What was just sent is posted at once, not at the next turn, unless something waits before it.
  void PostAtOnce();
  // The other side has closed the link: nothing is said any more, and nothing is given up for it.
  void FallSilent() { silent_ = true; }
  // Bytes of the longest eager message that both sides allow; 0: none, or not ready.
  size_t eager_max() const { return eager_max_; }
  // Bytes that may travel in an entry.
  size_t PayloadMost(EntryKind kind) const;

  void WakeUp() { WantTurn(); }  // for a turn, and OnRoom()
  void WakeAt(absl::Time when);  // at the latest
  // By an entry kTaken, as soon as there is room for one.
  void SendTaken() {
    if (!silent_ && !std::exchange(taken_wanted_, true)) WantTurn();
  }
  bool ready() const { return ready_; }
  const absl::Status& failure() const { return failure_; }  // OK, or what OnWireBroken() will say
  const LaneSet& lanes() const { return lanes_; }
  Rails& rails() const { return *shared_.rails; }

  // Destroys the queue pairs: no byte of the owner's memory is read or written afterwards.
  void Close();

  bool OnTurn(absl::Time now) override;
  void OnDeadline(absl::Time now) override;
  void OnPathNews() override { WantTurn(); }

 private:
  // Slots that only kTaken may use, so that two full rings can still tell each other.
  static constexpr uint64_t kReserved = 8;

  bool ended() const { return closed_ || !failure_.ok(); }

  // Sending (wire.cc).
  void Enqueue(const EntryHeader& header, const std::byte* payload, uint64_t length,
               absl::string_view small, uint32_t token);
  void Flush(bool in_turn);
  absl::Status Post(uint64_t number, int lane);
  void NoteDelivered(SentEntry& entry);
  bool MaySendTaken() const;
  void SendTakenWhenDue();
  void OnDeviceDelivered(int lane, uint64_t number) override;

  // Receiving (wire.cc).
  void OnWritten(uint32_t immediate) override;
  void Arrived(uint64_t number);
  bool ComesInOrder(uint64_t number) const;
  absl::Status Take(uint64_t number);
  absl::Status OnTaken(uint64_t below) override;
  const ArrivalRecord& arrivals() const override { return in_; }

  // Repair (wire_repair.cc): what a lost queue pair leaves behind, doubts, and the end.
  void OnPairEnded(int lane, uint32_t epoch, int rail) override;
  void OnLaneEnded(int lane, const ArrivalRecord& record) override;
  void LookForStalls(absl::Time now);
  void Tell();
  absl::Status OnTell(const Control& control);
  bool Hopeless(absl::Time now) const;
  void GiveUp();
  void Fail(const absl::Status& why);
  void Watch();  // sets the deadline
  // Passes on what is new of the reports about paths, and follows it.
  void TellOfPaths();
  absl::Status OnPaths(absl::string_view reports);

  absl::Status OnHello(const Control& control, const std::string& text);
  void Say(const Control& control, absl::string_view text) override;
  void WantLaneTurn() override { WantTurn(); }

  VerbsShared& shared_;
  VerbsWireOwner& owner_;
  const bool leads_;
  const absl::Duration look_every_;  // at what has not been acknowledged
  const uint64_t token_;             // that entries for this side carry
  bool ready_ = false, closed_ = false;
  absl::Status failure_;
  WireTrouble trouble_;
  EntryRing ring_;
  LaneSet lanes_;
  LaneSelection selection_;
  size_t eager_max_ = 0;
  uint64_t peer_token_ = 0;  // that entries for the other side carry

  SentEntries sent_;
  ArrivalRecord in_;
  uint64_t told_ = 0;  // in_.base, as far as the other side knows
  // When it is told of what came since, other than kTaken, if nothing goes there before.
  absl::Time taken_due_ = absl::InfiniteFuture();
  bool taken_wanted_ = false, silent_ = false;
  int rounds_behind_ = 0;                          // see OnTurn()
  std::vector<std::pair<int, std::string>> lost_;  // lanes, outside of a turn, and why

  // Questions what has arrived, this side's and the other's.
  uint32_t ask_ = 0;
  absl::Time asked_at_ = absl::InfinitePast();
  bool ask_open_ = false;
  uint32_t asked_ = 0;  // the other side's question, 0: answered
  uint64_t asked_mark_ = 0;
  uint64_t paths_told_ = 0;                      // version of the reports
  absl::Time wake_at_ = absl::InfiniteFuture();  // the deadline that is set
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_WIRE_H_
