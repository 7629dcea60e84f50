// Gives the places of a job to hosts, takes them away, and has hosts test themselves: the part of a
// decision (decisions.h) that writes NodeState, HostState::node and evicted, and the site's
// notices. Ranks of a node whose host changes are held, or started anew on the next one
// (rank_starts.h).
//
// No I/O, no clock; one thread.
#ifndef WEFT_TOOLS_RECOVERY_HOST_PLACES_H_
#define WEFT_TOOLS_RECOVERY_HOST_PLACES_H_

#include <string>

#include "tools/recovery/job_change.h"
#include "tools/recovery/job_state.h"
#include "tools/recovery/rank_starts.h"

namespace weft::recovery {

class HostPlaces {
 public:
  // Both outlive this object.
  HostPlaces(JobChange& change, RankStarts& ranks) : change_(change), ranks_(ranks) {}

  // The host is gone, and may join again. One that was evicted is remembered.
  void Lose(const std::string& name, const std::string& why);
  // The host gets no place any more. Once.
  void Evict(const std::string& name, HostState& host, const std::string& why);
  // The host tests itself, with hosts near it; unless it does.
  void Test(const std::string& name, HostState& host, const std::string& why);

  // Gives the places without a host to spares, and starts the job once all places have one.
  void FillVacancies();
  // Stops the job where a place has had no host for too long (Policy::vacancy_most).
  void CheckVacancies();

 private:
  void Dismiss(const std::string& host, int node, const std::string& rack, const std::string& why);
  void Vacate(int node, const std::string& rack);

  JobChange& change_;
  RankStarts& ranks_;
};

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_HOST_PLACES_H_
