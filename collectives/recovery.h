// How the ranks of a job meet again after one of them died and was started anew.
//
// The job's life is a sequence of epochs, numbered from 0. A process that takes a dead one's place
// (a generation above 0, WEFT_GENERATION) begins the next epoch; those that survive notice through
// their errors that a rank is gone, give up what they were doing, and wait for that. The store
// turns away the replaced process itself (rendezvous/store.h).
//
// In an epoch in which every survivor still has its endpoint, and its links to the other survivors,
// nothing but what leads to the replaced ranks is made anew: Rejoinable::Forget() before a rank
// arrives, Rejoin() after all have. Else, as where a link between two survivors broke as well, a
// rank died while all joined, or no rank survived, all ranks join as at the start, under keys of
// the epoch, so that nothing of an earlier one is mistaken for the present: the epoch is the base
// of those after it.
//
// One key holds the newest epoch's number, its base, the epoch before it at which all had arrived,
// the ranks that were replaced since, and, once all ranks have arrived at it, the word "ready";
// everybody watches that key. A rank that dies on its way leaves an epoch that is never ready: its
// successor begins another one, and all who wait go there.
//
// Used by one thread. Needs a store with watches: weft-run's.
#ifndef WEFT_COLLECTIVES_RECOVERY_H_
#define WEFT_COLLECTIVES_RECOVERY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "collectives/process_end.h"
#include "collectives/rejoin.h"
#include "collectives/rendezvous/job_environment.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/store.h"

namespace weft::collectives {

// While it lives, calls on the store that wait for other ranks end with kUnavailable as soon as an
// epoch after `epoch` begins: whoever joins learns at once that a rank has died meanwhile and was
// started anew, instead of waiting until its patience is at its end. Has a thread.
class JoinGuard {
 public:
  // `store` outlives this object. `ranks`: of the job.
  JoinGuard(StoreClient* store, int64_t epoch, int ranks);
  ~JoinGuard();
  JoinGuard(const JoinGuard&) = delete;
  JoinGuard& operator=(const JoinGuard&) = delete;

 private:
  void Watch();

  StoreClient* const store_;
  const int64_t epoch_;
  const int ranks_;
  std::thread thread_;
};

class Recovery {
 public:
  // `store` outlives this object.
  Recovery(Store* store, const JobEnvironment& environment);

  // Whether the launcher starts ranks anew (WEFT_RECOVER).
  bool enabled() const { return enabled_; }
  // Whether this process took the place of one that died.
  bool replaced() const { return generation_ > 0; }
  int64_t epoch() const { return epoch_; }

  // Whether a call that failed so may succeed for `rank` with another one started anew, by the
  // failure's scope (base/failure.h): another rank's process is gone, or no connection leads to it,
  // or its host has lost a device. Not where it is this rank's own device that failed: then its
  // process ends, and says so to who decides about hosts. Where the scope says neither: by the
  // code, kUnavailable, or kCancelled for a group that another rank has left because of the same.
  static bool Helps(const absl::Status& status, int rank);

  // Before this process first joins: the epoch to join in, which is 0 where no rank was replaced
  // yet. A replaced process begins an epoch and waits for the others, as Next() does.
  absl::StatusOr<int64_t> First(absl::Duration timeout);
  // Lets go of the ranks that are replaced, and says whether this rank has all else that it had
  // (Rejoinable::Forget). Called before it arrives at an epoch.
  using LetGo = std::function<absl::Status(const std::vector<int>& replaced)>;
  // Waits for an epoch after the present one, at which all ranks have arrived. Null `let_go`: this
  // rank has nothing, and all join as at the start. kDeadlineExceeded says who has not come, or
  // that no rank was started anew.
  absl::StatusOr<int64_t> Next(absl::Duration timeout, const LetGo& let_go = nullptr);

  // How ranks join in the present epoch: whether only what changed is made anew, which ranks were
  // replaced, and the epoch in which all last joined as at the start, 0 for the start itself.
  bool rejoins() const { return base_ != epoch_; }
  Rejoining rejoining() const { return {.epoch = epoch_, .replaced = replaced_}; }
  int64_t base() const { return base_; }
  // This rank has joined in the present epoch.
  void Joined() { joined_ = epoch_; }

  // All ranks have done what the job is for, and may end; called by each, once all have met after
  // that. A process that is started anew later finds nobody to meet, and that it is over: it may
  // end as well.
  absl::Status SetOver();
  absl::StatusOr<bool> IsOver() const;  // of a process of the first generation: never
  static absl::StatusOr<bool> IsOver(Store& store);
  // Whether one of `some`, of a job of `ranks` ranks, has arrived at the newest epoch or was
  // replaced since the last one that was ready. Asked before these ranks are started first: the
  // store then has the epochs of an earlier run of the job.
  static absl::StatusOr<bool> HaveMet(Store& store, const std::vector<int>& some, int ranks);

  // For the time in which this rank joins in the present epoch. Null where no rank is started anew,
  // or the store is another than weft-run's: then the join's own patience is the bound.
  std::unique_ptr<JoinGuard> GuardJoin() const;

  // A replaced process says where it goes on, after `step`. kFailedPrecondition: the one before it
  // went on there too, and both ended by their own doing and for the same cause (WEFT_LAST_END,
  // process_end.h): starting anew does not help.
  absl::Status GoOnFrom(int64_t step);

 private:
  friend class JoinGuard;
  struct State;
  static absl::StatusOr<State> ParseState(absl::string_view text, int ranks);
  absl::Status Begin();
  bool HasAllElse(const State& state, const LetGo& let_go) const;
  absl::Status Arrive(const State& state, const LetGo& let_go);
  absl::Status Overdue(const absl::Status& status, int64_t awaited) const;

  Store* const store_;
  const int rank_;
  const int ranks_;
  const int generation_;
  const bool enabled_;
  const ProcessEnd last_end_;  // how the process before this one ended
  int64_t epoch_ = 0;
  int64_t base_ = 0;
  std::vector<int> replaced_;
  int64_t arrived_ = 0;  // the newest epoch at which this rank has arrived
  int64_t joined_ = -1;  // the newest epoch in which it has joined
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RECOVERY_H_
