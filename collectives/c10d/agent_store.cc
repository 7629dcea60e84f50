#include "collectives/c10d/agent_store.h"

#include <chrono>
#include <cstdlib>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "absl/strings/str_cat.h"
#include "collectives/c10d/store.h"

namespace weft::collectives {
namespace {

std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : otherwise;
}

}  // namespace

// The agent outlives the workers that it starts again, and so do their keys: each attempt has keys
// of its own.
absl::StatusOr<std::shared_ptr<Store>> ConnectAgentStore(const JobEnvironment& environment,
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

}  // namespace weft::collectives
