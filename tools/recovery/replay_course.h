// The course of a replay (replay.h): suspends all ranks, has hosts replay a step in groups, phase
// after phase, and evicts the host that computes wrongly: the part of a decision (decisions.h) that
// writes JobState::replay.
//
// No I/O, no clock; one thread.
#ifndef WEFT_TOOLS_RECOVERY_REPLAY_COURSE_H_
#define WEFT_TOOLS_RECOVERY_REPLAY_COURSE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/recovery/host_places.h"
#include "tools/recovery/job_change.h"
#include "tools/recovery/rank_starts.h"

namespace weft::recovery {

class ReplayCourse {
 public:
  // All outlive this object.
  ReplayCourse(JobChange& change, RankStarts& ranks, HostPlaces& hosts)
      : change_(change), ranks_(ranks), hosts_(hosts) {}

  // Whether there are hosts for two groups, and all ranks are still needed; false during a replay.
  bool CanBegin() const;
  // Where it can. `stop_status`: as Replay's.
  void Begin(const std::string& why, int stop_status);
  // What a host reports of the replay with the number `task`: a digest; empty: it failed there.
  void TakeResult(int64_t task, const std::string& host, const std::string& digest);
  // Goes on with the next phase, or ends the replay, once all hosts of this phase that are there
  // have reported.
  void Check();

 private:
  void BeginPhase(int phase, const std::vector<std::string>& hosts);
  void End();

  JobChange& change_;
  RankStarts& ranks_;
  HostPlaces& hosts_;
};

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_REPLAY_COURSE_H_
