// What the ranks of a group tell each other beside tensors: sums, texts, outcomes. All ranks make
// the same calls in one order; each blocks until every rank has made it, or until the group fails.
//
// A rank that meets an error must not leave, as the others would wait for it: it brings the error
// to the next Agree, which all ranks leave with one outcome. An error that these functions return
// themselves is the group's: some rank did not answer, within collective.timeout.
#ifndef WEFT_TRAINER_GROUPS_AGREEMENT_H_
#define WEFT_TRAINER_GROUPS_AGREEMENT_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "collectives/communicator.h"
#include "trainer/groups/nccl_collectives.h"
#include "trainer/groups/wait_times.h"

namespace weft::train {

// Marks an error that every rank of the job returns alike, so that none has to be told of it.
absl::Status AsAgreed(absl::Status status);
bool IsAgreed(const absl::Status& status);

// Used by one thread, but for has_failed.
class Agreement {
 public:
  Agreement() = default;  // a group of one
  // `communicator` is of several ranks, and outlives all calls; `members`: the ranks of the job
  // that it was made of, in its order; `job_size`: ranks of the job.
  Agreement(collectives::Communicator* communicator, std::vector<Rank> members, int job_size)
      : communicator_(communicator), members_(std::move(members)), job_size_(job_size) {}
  Agreement(const Agreement&) = delete;
  Agreement& operator=(const Agreement&) = delete;

  int rank() const { return communicator_ == nullptr ? 0 : communicator_->rank().value(); }
  int size() const { return communicator_ == nullptr ? 1 : communicator_->size(); }

  // In place, in double, the same on every rank.
  absl::Status Sum(absl::Span<double> values);
  // Every rank's text, in order of rank.
  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view text);
  // The same on rank 0; nothing on the others, so that long texts take memory of one rank alone.
  absl::StatusOr<std::vector<std::string>> GatherOnFirst(absl::string_view text);
  // Rank 0's text, on every rank.
  absl::StatusOr<std::string> FromFirst(absl::string_view text);
  // OK if it is on every rank; otherwise the status of the first rank where it is not, with that
  // rank's number in the job, on all ranks.
  absl::Status Agree(const absl::Status& status);
  // The same outcome in `agreed`; returns an error only when the group fails.
  absl::Status Agree(const absl::Status& status, absl::Status& agreed);
  // Runs each rank's `work`, on the calling thread, and returns when all are done; `agreed` is what
  // Agree makes of their statuses. Meanwhile the ranks meet at this interval, on threads of their
  // own: neither collective.timeout nor who watches the job takes a rank that works for longer than
  // the others for one that hangs. `work` does not use this group. Where the group fails, the error
  // that is returned has the group's code, and begins with that of this rank's `work`, unless that
  // is Cancelled: it gave up by has_failed().
  absl::Status RunTogether(const std::function<absl::Status()>& work, absl::Status& agreed,
                           absl::Duration interval = absl::Seconds(1));
  // The same of work that rank 0 alone has.
  absl::Status RunOnFirst(const std::function<absl::Status()>& work, absl::Status& agreed) {
    return RunTogether([&] { return rank() == 0 ? work() : absl::OkStatus(); }, agreed);
  }

  // From now on Sum, Gather, FromFirst, Agree and RunTogether return the session's failure, too.
  void WatchNccl(std::shared_ptr<NcclSession> session) { session_ = std::move(session); }
  // After an error on this rank: nothing on its GPU waits for other ranks any more.
  void AbortNccl(const absl::Status& why) {
    if (session_ != nullptr) session_->Fail(why);
  }
  // Fails what is under way and all later calls, here and on the group's other ranks, with `why`.
  void Abort(const absl::Status& why) {
    if (communicator_ != nullptr) communicator_->Abort(why);
  }
  // Whether RunTogether fails, whatever its work comes to; never in a group of one. Any thread,
  // while the group lives.
  bool has_failed() const;

 protected:
  WaitTimes& times() { return times_; }  // of all that blocks in the group
  absl::Status Block(collectives::Work& work, const char* wait_name) const {
    return times_.Block([&work] { return work.Wait(); }, wait_name);
  }

 private:
  // The session's failure, or OK.
  absl::Status CheckNccl() const {
    return session_ == nullptr ? absl::OkStatus() : session_->failure();
  }
  absl::StatusOr<std::vector<size_t>> GatherLengths(absl::string_view text);

  collectives::Communicator* const communicator_ = nullptr;  // null: a group of one
  const std::vector<Rank> members_;
  const int job_size_ = 1;
  std::shared_ptr<NcclSession> session_;  // null: NCCL is not used
  WaitTimes times_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_GROUPS_AGREEMENT_H_
