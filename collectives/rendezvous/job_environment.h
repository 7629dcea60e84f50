// A process's place in its job, from the environment that weft-run and torchrun set.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_JOB_ENVIRONMENT_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_JOB_ENVIRONMENT_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "collectives/store/server/store_server.h"
#include "collectives/store/store.h"
#include "net/transport.h"

namespace weft::collectives {

struct JobEnvironment {
  Rank rank{0};              // RANK
  int world_size = 1;        // WORLD_SIZE
  int local_rank = 0;        // LOCAL_RANK: on this host
  int local_world_size = 1;  // LOCAL_WORLD_SIZE
  int group_rank = 0;        // GROUP_RANK: this host's number
  std::string master_addr;   // MASTER_ADDR: rank 0's host
  int master_port = 0;       // MASTER_PORT; 0: not given
  // WEFT_STORE: weft-run's store, "host:port", or this host's relay, "unix:NAME"; may be empty.
  std::string store;
  // WEFT_STORE_PATIENCE: how long a store that is gone may take to come back.
  absl::Duration store_patience = absl::Seconds(2);
  net::JobSecret secret{};  // WEFT_JOB_SECRET, 64 hexadecimal digits; all zero: none
  std::string job = "job";  // WEFT_JOB_ID, else TORCHELASTIC_RUN_ID
  int generation = 0;    // WEFT_GENERATION: of this rank's process; a higher one fences lower ones
  bool recover = false;  // WEFT_RECOVER: the launcher starts ranks that died anew
  std::string last_end;  // WEFT_LAST_END: how the process before this one ended
  // torchrun's agent serves a TCPStore at MASTER_PORT: rank 0 must not (collectives/c10d connects).
  bool torch_agent_store = false;

  using Lookup = std::function<std::optional<std::string>(absl::string_view name)>;
  // With none of RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE: rank 0 of 1. Otherwise RANK and
  // WORLD_SIZE must be there, as must WEFT_STORE or MASTER_ADDR and MASTER_PORT when there is more
  // than one rank; the local ones are by default the same as the global ones' on one host.
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

// weft-run's store, where there is one; otherwise rank 0 serves one at MASTER_ADDR:MASTER_PORT, to
// which all connect within `timeout`; a process alone serves itself. kFailedPrecondition when
// torchrun's agent has that port.
absl::StatusOr<JobStore> StoreFromEnvironment(const JobEnvironment& environment,
                                              absl::Duration timeout = absl::Minutes(5));

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_JOB_ENVIRONMENT_H_
