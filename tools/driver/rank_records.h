// What the ranks of a host record (base/records.h), for its executor: reports of their steps and
// bytes, findings that people should see, and the pages by which others diagnose the whole job.
//
// The executor's thread calls all functions; a thread of the observer's (tools/run/observer.h)
// serves the pages.
#ifndef WEFT_TOOLS_DRIVER_RANK_RECORDS_H_
#define WEFT_TOOLS_DRIVER_RANK_RECORDS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tools/driver/records.h"
#include "tools/run/observer.h"
#include "tools/run/rank_process.h"

namespace weft::driver {

class RankRecords {
 public:
  // `folder` of the rings; empty: the default. Before the others.
  void Open(const std::string& folder, const std::string& job);
  // Serves pages, which others reach at the host `address`. Not OK: they cannot be served, which
  // costs the diagnosis of the whole job, not the job.
  absl::Status Serve(const std::string& address);

  void OnEnded(const run::RankProcess& rank);
  // Lines to be said, if any; each once. At most every second by itself.
  std::vector<std::string> Look(absl::Time now);

  // As of the last look; the step that a rank has done last: -1: not known.
  int64_t LastStep(int rank) const { return observer_->LastStep(rank); }
  // Bytes that a rank has sent and received.
  int64_t BytesOf(int rank) const;

  // What ranks have recorded of their going on with those of other nodes, for Fence::Observe().
  struct Progress {
    uint64_t bytes = 0;  // that have come from ranks of other nodes
    int64_t step = 0;    // that all have done; -1: none
    absl::Duration step_time;
  };
  // The progress of `ranks`, all those of `node`; each node has `ranks_per_node` ranks.
  Progress ProgressOf(const std::vector<run::RankProcess>& ranks, int node,
                      int ranks_per_node) const;

  // Where pages are served, and the last findings.
  void Report(HostReport& report) const;

 private:
  std::unique_ptr<run::Observer> observer_;
  std::string agent_, agent_token_;
  std::vector<std::string> findings_;  // the last ones that were said
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_RANK_RECORDS_H_
