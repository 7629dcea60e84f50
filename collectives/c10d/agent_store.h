// The store that torchrun's agent serves (TORCHELASTIC_USE_AGENT_STORE): a c10d::TCPStore, in which
// our keys have a prefix of this attempt's.
#ifndef WEFT_COLLECTIVES_C10D_AGENT_STORE_H_
#define WEFT_COLLECTIVES_C10D_AGENT_STORE_H_

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/rendezvous/job_environment.h"
#include "collectives/store/store.h"

namespace weft::collectives {

// For JoinOptions::agent_store. kUnavailable: nobody serves at MASTER_ADDR:MASTER_PORT.
absl::StatusOr<std::shared_ptr<Store>> ConnectAgentStore(const JobEnvironment& environment,
                                                         absl::Duration timeout);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_AGENT_STORE_H_
