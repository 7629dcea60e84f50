// How a program becomes one rank of its job: environment -> store -> endpoint -> groups.
//
//   store       connects to the job's store; one rank serves it where no launcher does
//   transports  opens what this rank is reached by
//   exchange    gives this rank's record and gets those of its planned neighbours
//               (rendezvous/fast_init.h); who shares a host with whom comes from rank 0, and in a
//               small job where everybody is, too (rank_directory.h)
//   groups      what the program makes before it works
//
// In a larger job another rank's record is fetched when this one first sends to it. The environment
// is that of weft-run, torchrun, mpirun or srun (rendezvous/launchers.h); a program started by
// nobody is a job of one rank.
#ifndef WEFT_COLLECTIVES_JOIN_H_
#define WEFT_COLLECTIVES_JOIN_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/settings.h"
#include "collectives/endpoint.h"
#include "collectives/rejoin.h"
#include "collectives/rendezvous/job_environment.h"
#include "collectives/store/store.h"
#include "topology/job/mesh.h"

namespace weft::collectives {

// Connects within `timeout` to the store that torchrun's agent serves (c10d/agent_store.h).
using AgentStoreConnector = std::function<absl::StatusOr<std::shared_ptr<Store>>(
    const JobEnvironment& environment, absl::Duration timeout)>;

struct JoinOptions {
  Settings settings{LibrarySettings()};
  // Keeps what this program says in the store apart from what others say there; may be empty.
  std::string program;
  // The parallel layout of that many ranks: its rings are whom this rank knows from the start.
  // Null: one ring of all.
  std::function<absl::StatusOr<topology::Mesh>(int ranks)> mesh;
  // Null: a job whose torchrun's agent serves a store has one of its own beside it, at the port
  // after the agent's.
  AgentStoreConnector agent_store;
  // Makes the program's groups; timed. May be null.
  std::function<absl::Status(const std::shared_ptr<Endpoint>& endpoint)> make_groups;
  // See RejoinableOptions; a process that comes into a job which goes on makes no report.
  bool rejoins = false;
  std::optional<Rejoining> rejoining;
  // Whether rank 0 waits for what the others say of their time (Job::report). All ranks want the
  // same.
  bool wants_report = true;
  // For programs that are given their place and a store, instead of the environment.
  std::optional<JobEnvironment> environment;
  std::shared_ptr<Store> store;
};

// The endpoint keeps the store alive.
struct Job {
  JobEnvironment environment;
  std::shared_ptr<Store> store;
  std::shared_ptr<Endpoint> endpoint;
  // At rank 0, if it was wanted: where the time of joining went, in one line, with the slowest rank
  // of the phase that took longest; elsewhere empty.
  std::string report;
};

// The store that `options` or else the environment names, for programs that need it before they
// join: to be given to JoinJob() as JoinOptions::store.
absl::StatusOr<std::shared_ptr<Store>> ConnectJobStore(const JoinOptions& options,
                                                       JobEnvironment environment);

// Returns when all ranks have given their records; kDeadlineExceeded (store.timeout) names those
// missing.
absl::StatusOr<Job> JoinJob(JoinOptions options);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_JOIN_H_
