// Which host of a job is taken: as a spare, as a helper of a test, for a replay, or as the one to
// suspect.
//
// Pure functions: no I/O, no clock. Each gives the same answer for the same state, whoever asks.
#ifndef WEFT_TOOLS_RECOVERY_HOST_CHOICE_H_
#define WEFT_TOOLS_RECOVERY_HOST_CHOICE_H_

#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/recovery/job_state.h"

namespace weft::recovery {

// The spare that is best in the place of a host of that rack: one that was never suspected before
// one that has passed a test, then the nearest. A host that tests itself is none until it has
// passed. Empty: there is none.
std::string SpareFor(const JobState& state, const std::string& rack);

// Hosts near `suspect`, the host `name`, the nearest first: below the same switch, then of near
// nodes, since ranks are placed so that near nodes lie below one switch; a host that is suspected
// helps nobody.
std::vector<std::string> TestHelpersFor(const JobState& state, const std::string& name,
                                        const HostState& suspect);

// Hosts that can replay a step, in the order of their nodes, so that groups are such as the job
// has; then spares.
std::vector<std::string> ReplayHosts(const JobState& state);

// The host to suspect where a rank on host `name` reports a device error of that host. A host
// whose peer has a broken device may report an error as well, so that the host goes before that
// the job's diagnosis blames. A blamed host may be evicted by now; then no host is suspected.
std::string HostAtFault(const JobState& state, const std::string& name, absl::Time now);

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_HOST_CHOICE_H_
