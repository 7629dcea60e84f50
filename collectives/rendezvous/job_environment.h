// A process's place in its job, from the environment that its launcher set: weft-run, torchrun,
// Open MPI's mpirun or Slurm's srun (launchers.h; docs/launch.md).
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_JOB_ENVIRONMENT_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_JOB_ENVIRONMENT_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "collectives/rendezvous/environment_variables.h"
#include "collectives/rendezvous/launchers.h"
#include "collectives/store/server/store_server.h"
#include "collectives/store/store.h"
#include "net/transport.h"

namespace weft::collectives {

struct JobEnvironment {
  Launcher launcher = Launcher::kNone;
  // With torchrun's names of the variables.
  Rank rank{0};              // RANK
  int world_size = 1;        // WORLD_SIZE
  int local_rank = 0;        // LOCAL_RANK: on this host
  int local_world_size = 1;  // LOCAL_WORLD_SIZE
  int group_rank = 0;        // GROUP_RANK: this host's number; 0 under Open MPI
  std::string master_addr;   // MASTER_ADDR: rank 0's host
  int master_port = 0;       // MASTER_PORT; 0: not given
  // Under Open MPI and Slurm: where a rank serves the job's store. No address: at MASTER_ADDR and
  // MASTER_PORT, and rank 0 does.
  MeetingPlace meeting;
  // WEFT_STORE: weft-run's store, "host:port", or this host's relay, "unix:NAME"; may be empty.
  std::string store;
  // WEFT_STORE_PATIENCE: how long a store that is gone may take to come back.
  absl::Duration store_patience = absl::Seconds(2);
  net::JobSecret secret{};  // WEFT_JOB_SECRET, 64 hexadecimal digits; all zero: none
  std::string job = "job";  // WEFT_JOB_ID, else TORCHELASTIC_RUN_ID or LaunchedRank::job
  int generation = 0;    // WEFT_GENERATION: of this rank's process; a higher one fences lower ones
  bool recover = false;  // WEFT_RECOVER: the launcher starts ranks that died anew
  std::string last_end;  // WEFT_LAST_END: how the process before this one ended
  // torchrun's agent serves a TCPStore at MASTER_PORT: rank 0 must not (collectives/c10d connects).
  bool torch_agent_store = false;

  using Lookup = EnvironmentLookup;
  // Without any launcher's variables: rank 0 of 1. With one of torchrun's, RANK and WORLD_SIZE must
  // be there, as must WEFT_STORE or MASTER_ADDR and MASTER_PORT when there is more than one rank;
  // the local ones are by default the same as the global ones' on one host. Open MPI and Slurm set
  // all that one host needs; several need WEFT_JOB_SECRET, and under Open MPI MASTER_ADDR.
  // kInvalidArgument names every variable that is missing or bad.
  static absl::StatusOr<JobEnvironment> Parse(const Lookup& lookup);
  static absl::StatusOr<JobEnvironment> FromEnvironment();  // of this process
};

// The job's store, and the server, where this process serves it.
struct JobStore {
  JobStore() = default;
  JobStore(JobStore&&) = default;
  JobStore& operator=(JobStore&&) = default;
  // A server waits up to 5 s for the other ranks to leave: what they still wait for is here.
  ~JobStore();

  std::unique_ptr<StoreServer> server;
  std::unique_ptr<Store> store;
};

// weft-run's store, where there is one; otherwise one rank serves one where all meet (`meeting`, or
// MASTER_ADDR:MASTER_PORT), to which all connect within `timeout`; a process alone serves itself.
// kFailedPrecondition when torchrun's agent has that port.
absl::StatusOr<JobStore> StoreFromEnvironment(const JobEnvironment& environment,
                                              absl::Duration timeout);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_JOB_ENVIRONMENT_H_
