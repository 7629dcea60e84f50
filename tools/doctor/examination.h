// The doctor's examinations as calls: what weft-doctor prints, for it and for programs that watch
// over hosts or jobs. They read, and change nothing.
//
// ExamineHost() may be called by any program of a host, a launcher or an agent, beside whatever
// runs there. ExamineJob() is called by all ranks of a job, and only by them: it sends between
// them.
#ifndef WEFT_TOOLS_DOCTOR_EXAMINATION_H_
#define WEFT_TOOLS_DOCTOR_EXAMINATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/settings.h"
#include "tools/doctor/finding.h"
#include "tools/doctor/node.h"
#include "tools/doctor/pairs.h"

namespace weft::doctor {

struct HostExamination {
  Node node;
  Findings findings;
};

// This host, or the copy of another one below `root` (node.h). Takes up to a second, since
// libraries are loaded in child processes, and `watch`, in which error counters may grow; zero:
// they are not watched. kInvalidArgument: `root` holds no copy of a host. What a host lacks is a
// finding, and no error.
absl::StatusOr<HostExamination> ExamineHost(const std::string& root, absl::Duration watch);

struct JobExamination {
  int rank = 0;                       // this process's
  std::vector<std::string> hosts;     // of the ranks, by rank
  std::vector<Direction> directions;  // by sender, then receiver
  Findings findings;                  // of all hosts and pairs: equal on all ranks
};

// The hosts of the environment's job, and the links between each pair of its ranks, both ways.
// Meets the other ranks within store.timeout; then takes at most four times `options.timeout` for
// each round of TestPairs(), and ten minutes for the others' reports. kFailedPrecondition: the job
// has one rank. A pair that does not reach each other is a finding, and no error.
absl::StatusOr<JobExamination> ExamineJob(const Settings& settings, const std::string& root,
                                          const PairOptions& options);

}  // namespace weft::doctor

#endif  // WEFT_TOOLS_DOCTOR_EXAMINATION_H_
