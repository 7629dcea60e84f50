// Programs that run as the ranks of a job: started by a launcher (docs/launch.md), or, with
// --ranks, by themselves.
#ifndef WEFT_TOOLS_JOB_JOB_H_
#define WEFT_TOOLS_JOB_JOB_H_

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/settings.h"
#include "collectives/communicator.h"
#include "collectives/join.h"
#include "topology/job/mesh.h"

namespace weft::job {

// Becomes `weft-run -n N OPTIONS -- program ...`: this command line without --ranks. `options`:
// more of weft-run's. Returns only on error.
absl::Status BecomeLauncher(int ranks, int argc, char** argv,
                            const std::vector<std::string>& options = {});

struct Joined : collectives::Job {
  std::unique_ptr<collectives::Communicator> world;
};

// Meets the other ranks of the environment's job, within store.timeout. `program` keeps what it
// says in the store apart from what others say there.
// `mesh`: the job's layout, whose groups along an axis run at the same time; none: one group.
absl::StatusOr<Joined> Join(const Settings& settings, const std::string& program,
                            const std::optional<topology::Mesh>& mesh = std::nullopt);

}  // namespace weft::job

#endif  // WEFT_TOOLS_JOB_JOB_H_
