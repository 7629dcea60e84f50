// Starts the ranks of a job, at once or after a pause, and ends the job: the part of a decision
// (decisions.h) that writes RankState::generation, started and due, and JobState::outcome.
//
// No I/O, no clock; one thread.
#ifndef WEFT_TOOLS_RECOVERY_RANK_STARTS_H_
#define WEFT_TOOLS_RECOVERY_RANK_STARTS_H_

#include <string>

#include "absl/time/time.h"
#include "tools/recovery/job_change.h"
#include "tools/recovery/job_state.h"

namespace weft::recovery {

// A process that ends within this time has not got anywhere, unless its steps say that it has.
inline constexpr absl::Duration kSoon = absl::Seconds(10);

class RankStarts {
 public:
  explicit RankStarts(JobChange& change) : change_(change) {}  // outlives this object

  // The first start of the job: all ranks, as they are.
  void StartAll();
  // In a new generation.
  void StartAnew(int rank, const std::string& why);
  // The same after a pause where its last ends came soon (RankState::soon_ends); `why` says how it
  // ended.
  void StartAfterPause(int rank, const std::string& why);
  // Starts the ranks whose pause is over.
  void StartDue();
  // All ranks of a node whose processes are gone, in new generations. Stops the job where these
  // would not meet a rank that is done already.
  void StartNode(int node, const std::string& why);

  // All ranks, or those of a node, do not run, and no start of theirs is awaited.
  void HoldAll();
  void HoldNode(int node);
  // Whether all ranks of the node are done.
  bool IsDone(int node) const;

  // Ends the job, once.
  void Stop(int exit_status, std::string reason);

 private:
  void Run(int rank, const std::string& why);
  void StartLater(int rank, absl::Duration pause, const std::string& why);
  absl::Duration Backoff(const RankState& rank) const;

  JobChange& change_;
};

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_RANK_STARTS_H_
