// Which launcher started this process, what place in the job the launcher's variables give it, and
// where the ranks of that job meet. Pure functions of an environment; thread-safe.
//
//   torchrun   RANK: of torchrun and weft-run, and of scripts that set the same variables
//   openmpi    OMPI_COMM_WORLD_RANK: of Open MPI's mpirun, also in an allocation of Slurm's
//   slurm      SLURM_PROCID with SLURM_STEP_ID: a task that srun started. A batch script's shell
//              has a SLURM_PROCID too, but is no task of a step.
//
// The first of these that is there is the launcher, since launchers start launchers: srun starts
// torchrun on each host, and mpirun starts its daemons by srun. WEFT_JOB_LAUNCHER overrides that.
// RANK without a sign of torchrun or weft-run (TORCHELASTIC_RUN_ID, WEFT_STORE) was set by hand,
// and must not contradict the others.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_LAUNCHERS_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_LAUNCHERS_H_

#include <sys/types.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/rendezvous/environment_variables.h"

namespace weft::collectives {

inline constexpr int kWorldSizeMax = 1 << 20;

enum class Launcher { kNone, kTorchrun, kOpenMpi, kSlurm };

// "none", "torchrun", "openmpi", "slurm": the words of WEFT_JOB_LAUNCHER.
absl::string_view LauncherName(Launcher launcher);

struct LaunchedRank {
  Launcher launcher = Launcher::kNone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // on this host
  int local_world_size = 1;
  int host = 0;  // this host's number; 0 under Open MPI, which does not say
  bool is_on_one_host = true;
  // The launcher's name of the job, the same at all ranks and at no other job of this user that
  // runs: "slurm-weft-17.0", "openmpi-1481375745". Letters, digits and "-._@", at most 64. Empty
  // under torchrun.
  std::string job;
  std::vector<std::string> hosts;  // by number; empty where the launcher does not name them
};

// Adds to the problems of `variables` what is missing, no number or contradictory; the result then
// means nothing.
LaunchedRank ReadLaunchedRank(EnvironmentVariables& variables);

// Where the ranks of a job of several ranks meet when no launcher serves a store.
struct MeetingPlace {
  std::string address;  // "host:port" or "unix:NAME"
  std::string listen;   // the same place as its server listens there
  bool serves = false;  // this process does
};

// For kOpenMpi and kSlurm. On one host a Unix socket, whose name has `user` and the job in it; both
// sides of a connection look at the other's user. On several hosts rank 0's host under Open MPI
// (MASTER_ADDR), and under Slurm the first host, or the one of the step's hosts that MASTER_ADDR
// names, whose first task serves; the port is MASTER_PORT or else follows from the job.
// `has_secret`: whether the environment has the job's secret, without which several hosts do not
// meet.
MeetingPlace FindMeetingPlace(EnvironmentVariables& variables, const LaunchedRank& rank, uid_t user,
                              bool has_secret);

// Slurm's counts of tasks by host, "2(x3),1": {2, 2, 2, 1}. kInvalidArgument, also for more than
// kWorldSizeMax hosts or tasks.
absl::StatusOr<std::vector<int>> ParseTasksPerNode(absl::string_view text);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_LAUNCHERS_H_
