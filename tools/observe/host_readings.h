// Readings of the ranks of this host, from its kernel: the cgroup of each process (throttling,
// memory) and the counters of the host's RDMA ports that tell trouble.
#ifndef WEFT_TOOLS_OBSERVE_HOST_READINGS_H_
#define WEFT_TOOLS_OBSERVE_HOST_READINGS_H_

#include <string>

#include "tools/observe/job_view.h"

namespace weft::observe {

// Adds to every rank of `view` whose process lives here. What a file does not say is left out.
// `root` stands before /proc and /sys, for tests.
void TakeHostReadings(JobView* view, int64_t now_ns, const std::string& root = "");

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_HOST_READINGS_H_
