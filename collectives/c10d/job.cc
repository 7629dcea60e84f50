#include "collectives/c10d/job.h"

#include <chrono>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/c10d/store.h"

namespace weft::collectives {
namespace {

std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

// The agent outlives the workers that it starts again, and so do their keys: each attempt has keys
// of its own.
absl::StatusOr<std::shared_ptr<Store>> AgentStore(const JobEnvironment& environment,
                                                  absl::Duration timeout) {
  c10d::TCPStoreOptions options;
  options.port = static_cast<uint16_t>(environment.master_port);
  options.timeout = absl::ToChronoMilliseconds(timeout);
  options.waitWorkers = false;
  options.useLibUV = FromEnvironment("USE_LIBUV", "1") == "1";
  std::string prefix =
      absl::StrCat("weft/attempt_", FromEnvironment("TORCHELASTIC_RESTART_COUNT", "0"));
  try {
    return std::make_shared<C10dStoreAdapter>(c10::make_intrusive<c10d::PrefixStore>(
        prefix, c10::make_intrusive<c10d::TCPStore>(environment.master_addr, options)));
  } catch (const std::exception& error) {
    return absl::UnavailableError(absl::StrCat("connect to torchrun's store at ",
                                               environment.master_addr, ":",
                                               environment.master_port, ": ", error.what()));
  }
}

absl::StatusOr<std::shared_ptr<Store>> StoreOf(const JobEnvironment& environment,
                                               absl::Duration timeout) {
  if (environment.torch_agent_store && environment.store.empty()) {
    return AgentStore(environment, timeout);
  }
  WEFT_ASSIGN_OR_RETURN(JobStore store, StoreFromEnvironment(environment, timeout));
  auto kept = std::make_shared<JobStore>(std::move(store));
  return std::shared_ptr<Store>(kept, kept->store.get());
}

}  // namespace

absl::StatusOr<Job> JoinJob(const Settings& settings) {
  Job job;
  WEFT_ASSIGN_OR_RETURN(job.environment, JobEnvironment::FromEnvironment());
  WEFT_ASSIGN_OR_RETURN(job.store, StoreOf(job.environment, settings.Duration("store.timeout")));

  EndpointOptions options;
  options.rank = job.environment.rank;
  options.world_size = job.environment.world_size;
  options.store = job.store.get();
  options.job = job.environment.job;
  options.secret = job.environment.secret;
  options.settings = settings;
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Endpoint> endpoint, Endpoint::Create(std::move(options)));
  // Groups keep the endpoint alive, and the endpoint uses the store until its end.
  struct Kept {
    std::shared_ptr<Store> store;
    std::shared_ptr<Endpoint> endpoint;
  };
  auto kept = std::make_shared<Kept>(Kept{job.store, std::move(endpoint)});
  job.endpoint = std::shared_ptr<Endpoint>(kept, kept->endpoint.get());

  std::vector<Rank> everybody;
  for (int rank = 0; rank < job.environment.world_size; ++rank) everybody.push_back(Rank(rank));
  WEFT_ASSIGN_OR_RETURN(job.world,
                        WeftBackend::Create(job.endpoint, "world", std::move(everybody)));
  return job;
}

}  // namespace weft::collectives
