// How a program becomes one rank of a job: environment -> store -> endpoint -> world group.
//
// The environment is torchrun's (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT ...), as
// weft-run gives it, too. Three cases:
//   started by weft-run          the launcher serves our store
//   started by torchrun          its agent serves a c10d::TCPStore (TORCHELASTIC_USE_AGENT_STORE);
//                                ours are keys with a prefix in it
//   neither, but MASTER_ADDR     rank 0 serves our store
//   and RANK are given
// Without any of them a job of one rank is made, which needs no store but its own.
#ifndef WEFT_COLLECTIVES_C10D_JOB_H_
#define WEFT_COLLECTIVES_C10D_JOB_H_

#include <memory>

#include "absl/status/statusor.h"
#include "base/settings.h"
#include "collectives/c10d/backend.h"
#include "collectives/endpoint.h"
#include "collectives/rendezvous/job_environment.h"
#include "collectives/rendezvous/store.h"

namespace weft::collectives {

// Members die in reverse order: the group before the endpoint, the endpoint before the store.
struct Job {
  JobEnvironment environment;
  std::shared_ptr<Store> store;
  std::shared_ptr<Endpoint> endpoint;
  c10::intrusive_ptr<WeftBackend> world;
};

// Returns when all ranks have joined; kDeadlineExceeded (store.timeout) names those missing.
absl::StatusOr<Job> JoinJob(const Settings& settings);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_JOB_H_
