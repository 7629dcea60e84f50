// The lanes of a link: offers them to the other side, connects and tries their queue pairs,
// replaces those that fail, and hands their completions to the link. Which entries go on them is
// the link's business (wire.h); how many there should be, LaneSelection's.
//
// The side that leads offers; both ends of a queue pair end together, and tell each other what has
// arrived (entry.h has the list of controls). A queue pair that replaces a lost one may take the
// same dead path again, and any new one another: it is tried with a write of no bytes, and gets
// nothing else until that is acknowledged. Not thread-safe.
#ifndef WEFT_NET_VERBS_LANE_SET_H_
#define WEFT_NET_VERBS_LANE_SET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "net/transport.h"
#include "net/verbs/entry.h"
#include "net/verbs/lane.h"
#include "net/verbs/lane_setup.h"
#include "net/verbs/record.h"
#include "net/verbs/wire_shared.h"
#include "net/verbs/wire_trouble.h"

namespace weft::net {

class LaneSetOwner {
 public:
  virtual ~LaneSetOwner() = default;
  // A completion says that the other side has written an entry with this immediate.
  virtual void OnWritten(uint32_t immediate) = 0;
  // The device has delivered what was posted of `entry` on the lane.
  virtual void OnDeviceDelivered(int lane, uint64_t entry) = 0;
  // The lane's queue pair, of this epoch and rail, writes nothing any more.
  virtual void OnPairEnded(int lane, uint32_t epoch, int rail) = 0;
  // Both ends of the lane's queue pair have ended; what arrived at the other side: `record`.
  virtual void OnLaneEnded(int lane, const ArrivalRecord& record) = 0;
  // The other side has taken all entries below this number. An error breaks the link.
  virtual absl::Status OnTaken(uint64_t below) = 0;
  virtual const ArrivalRecord& arrivals() const = 0;  // of this side
  virtual void Say(const Control& control, absl::string_view text) = 0;
  virtual void WantLaneTurn() = 0;
};

class LaneSet final : private QueuePairUser {
 public:
  LaneSet(VerbsShared& shared, LaneSetOwner& owner, WireTrouble& trouble, bool leads, int peer,
          uint64_t link)
      : shared_(shared),
        owner_(owner),
        trouble_(trouble),
        leads_(leads),
        setup_(shared, leads, peer, link) {}

  LaneSetup& setup() { return setup_; }
  // Once the other side's hello is there, with its host and devices in words.
  void Start(const Control& hello, const std::string& peer_text);
  // What the other side says of a lane. An error breaks the link.
  absl::Status OnControl(const Control& control, const std::string& text);
  // Destroys the queue pairs, and makes no others.
  void End();

  // As many as are wanted, and spares.
  size_t size() const { return lanes_.size(); }
  Lane& operator[](int index) { return lanes_[static_cast<size_t>(index)]; }
  absl::Span<const Lane> lanes() const { return lanes_; }
  absl::Span<Lane> lanes() { return absl::MakeSpan(lanes_); }
  int wanted() const { return wanted_; }
  int Live() const;
  int Carrying() const;
  uint64_t BytesAcross() const;

  // Posts `writes` of `entry`, whose bytes are counted as outstanding. kUnavailable: the queue pair
  // has failed.
  absl::Status Post(int index, absl::Span<const NicWrite> writes, uint64_t entry);

  // The leader makes a queue pair, and offers it.
  void Offer(int index);
  // The queue pair has failed: ends it on both sides, and makes another.
  void Fail(int index, const std::string& why);
  // Ends the queue pair on both sides, without a fault. Leader only.
  void Retire(int index);
  static void StopRetrying(Lane& lane);
  // Where the reports about paths have `changed`, or a queue pair has begun to carry data since:
  // each that they give another way is given nothing more, and has a successor on that way once
  // what is in flight has arrived. Leader only.
  void FollowPaths(bool changed);
  void WantTurn() { owner_.WantLaneTurn(); }

  // When Tick() has something to do.
  absl::Time NextDeadline() const;
  // Offers lanes again whose time has come, and fails those whose trial is at its end.
  void Tick(absl::Time now);
  // Whether a lane that should work does not.
  bool AnyDown() const;

  std::string Text(const Lane& lane) const;
  std::string Describe() const;  // "2 queue pairs; host a, mlx5_0 port 1, ... -> host b, ..."
  std::vector<LaneReport> Reports() const;
  void AddTo(FlowCounters* counters) const;  // repeats, and the longest round trip of a lane

 private:
  static constexpr int kSpareLanes = 4;

  void OnCompletion(int index, bool receive, uint32_t number, const NicCompletion& what) override;
  void OnQueuePairLost(int index, const std::string& why) override { Fail(index, why); }
  void OnConnected(int index, const absl::Status& status) override;

  Control ControlOf(ControlKind kind, int index) const;
  absl::Status OnOffer(const Control& control);
  absl::Status OnAnswer(const Control& control);
  void Refuse(int index, absl::string_view why);
  absl::Status Make(int index, uint32_t epoch, int rail);
  absl::Status Connect(int index, const Control& remote);
  void GoLive(int index);
  void BeginTrial(int index);
  void EndPair(int index);
  void SayDown(int index, ControlKind kind, absl::string_view why);
  void Retry(Lane& lane);
  bool Replenish(Lane& lane);

  VerbsShared& shared_;
  LaneSetOwner& owner_;
  WireTrouble& trouble_;
  const bool leads_;
  LaneSetup setup_;
  Control hello_;          // the other side's
  std::string peer_text_;  // its host and devices
  std::vector<Lane> lanes_;
  int wanted_ = 0;
  bool ended_ = false;
  bool any_new_ = false;  // that carries data, since FollowPaths()
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_LANE_SET_H_
