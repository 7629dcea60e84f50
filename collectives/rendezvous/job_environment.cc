#include "collectives/rendezvous/job_environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/client/store_addresses.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/protocol/store_hello.h"
#include "net/secret.h"

namespace weft::collectives {
namespace {

constexpr int kWorldMax = 1 << 20;

// Collects what is wrong, to say it all at once.
class Variables {
 public:
  explicit Variables(const JobEnvironment::Lookup& lookup) : lookup_(lookup) {}

  std::optional<std::string> Text(absl::string_view name) const {
    auto value = lookup_(name);
    return value.has_value() && value->empty() ? std::nullopt : value;
  }

  std::optional<int> Number(absl::string_view name, int min, int max) {
    auto text = Text(name);
    if (!text.has_value()) return std::nullopt;
    int value = 0;
    if (absl::SimpleAtoi(*text, &value) && value >= min && value <= max) return value;
    Wrong(absl::StrCat(name, "='", *text, "' is no number from ", min, " to ", max));
    return std::nullopt;
  }

  int Required(absl::string_view name, int min, int max, int otherwise) {
    size_t before = wrong_.size();
    auto value = Number(name, min, max);
    if (!value.has_value() && wrong_.size() == before) Wrong(absl::StrCat(name, " is not set"));
    return value.value_or(otherwise);
  }

  void Wrong(std::string what) { wrong_.push_back(std::move(what)); }

  absl::Status status() const {
    if (wrong_.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("the environment does not say this process's place in its job: ",
                     absl::StrJoin(wrong_, "; "), " (weft-run and torchrun set these)"));
  }

 private:
  const JobEnvironment::Lookup& lookup_;
  std::vector<std::string> wrong_;
};

void ParseRanks(Variables& variables, JobEnvironment& job) {
  job.world_size = variables.Required("WORLD_SIZE", 1, kWorldMax, 1);
  job.rank = Rank(variables.Required("RANK", 0, kWorldMax - 1, 0));
  job.local_rank = variables.Number("LOCAL_RANK", 0, kWorldMax).value_or(job.rank.value());
  job.local_world_size = variables.Number("LOCAL_WORLD_SIZE", 1, kWorldMax)
                             .value_or(std::max(job.world_size, job.local_rank + 1));
  job.group_rank = variables.Number("GROUP_RANK", 0, kWorldMax).value_or(0);
  if (!variables.status().ok()) return;
  if (job.rank.value() >= job.world_size) {
    variables.Wrong(
        absl::StrCat("RANK=", job.rank.value(), " is not below WORLD_SIZE=", job.world_size));
  }
  if (job.local_rank >= job.local_world_size) {
    variables.Wrong(absl::StrCat("LOCAL_RANK=", job.local_rank,
                                 " is not below LOCAL_WORLD_SIZE=", job.local_world_size));
  }
}

std::string HostName() {
  std::array<char, 256> name{};
  gethostname(name.data(), name.size() - 1);
  return name.data();
}

std::string ClientName(const JobEnvironment& job) {
  return absl::StrCat("rank ", job.rank.value(), " pid ", getpid());
}

}  // namespace

absl::StatusOr<JobEnvironment> JobEnvironment::Parse(const Lookup& lookup) {
  Variables variables(lookup);
  JobEnvironment job;
  bool launched = false;
  for (absl::string_view name : {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}) {
    launched = launched || variables.Text(name).has_value();
  }
  if (launched) ParseRanks(variables, job);
  job.job = variables.Text("WEFT_JOB_ID")
                .value_or(variables.Text("TORCHELASTIC_RUN_ID").value_or(job.job));
  job.generation =
      variables.Number("WEFT_GENERATION", 0, std::numeric_limits<int>::max()).value_or(0);
  job.recover =
      variables.Number("WEFT_RECOVER", 0, std::numeric_limits<int>::max()).value_or(0) > 0;
  job.last_end = variables.Text("WEFT_LAST_END").value_or("");
  job.torch_agent_store =
      absl::AsciiStrToLower(variables.Text("TORCHELASTIC_USE_AGENT_STORE").value_or("")) == "true";
  job.master_addr = variables.Text("MASTER_ADDR").value_or("");
  job.master_port = variables.Number("MASTER_PORT", 1, 65535).value_or(0);
  job.store = variables.Text("WEFT_STORE").value_or("");
  if (!job.store.empty() && !CheckStoreAddress(job.store).ok()) {
    variables.Wrong(
        absl::StrCat("WEFT_STORE='", job.store, "' is neither host:port nor unix:NAME"));
  }
  if (auto text = variables.Text("WEFT_STORE_PATIENCE"); text.has_value()) {
    bool good = absl::ParseDuration(*text, &job.store_patience) &&
                job.store_patience >= absl::ZeroDuration();
    if (!good) variables.Wrong(absl::StrCat("WEFT_STORE_PATIENCE='", *text, "' is no duration"));
  }
  if (auto hex = variables.Text(net::kSecretVariable); hex.has_value()) {
    auto secret = net::SecretFromHex(*hex);
    if (secret.ok()) {
      job.secret = *secret;
    } else {
      variables.Wrong(absl::StrCat(net::kSecretVariable, ": ", secret.status().message()));
    }
  }
  if (job.world_size > 1 && job.store.empty()) {
    if (job.master_addr.empty()) variables.Wrong("MASTER_ADDR is not set");
    if (!variables.Text("MASTER_PORT").has_value()) variables.Wrong("MASTER_PORT is not set");
  }
  WEFT_RETURN_IF_ERROR(variables.status());
  return job;
}

absl::StatusOr<JobEnvironment> JobEnvironment::FromEnvironment() {
  return Parse([](absl::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  });
}

JobStore::~JobStore() {
  store.reset();
  if (server != nullptr) server->Drain(absl::Seconds(5));
}

absl::StatusOr<JobStore> StoreFromEnvironment(const JobEnvironment& job, absl::Duration timeout) {
  JobStore result;
  StoreClientOptions client;
  client.address = job.store;
  client.secret = job.secret;
  client.name = ClientName(job);
  client.job = job.job.substr(0, kStoreJobBytesMax);
  client.host = HostName();
  client.rank = job.rank;
  client.generation = job.generation;
  client.connect_timeout = timeout;
  client.reconnect = job.store_patience;
  // On one host the launcher's store stands before the ranks do: absent now means gone for good.
  if (!job.store.empty() && job.local_world_size == job.world_size) {
    client.connect_timeout = std::min(timeout, client.reconnect);
  }
  StoreServerOptions server;
  server.core.secret = job.secret;
  server.core.description = absl::StrCat(ClientName(job));
  if (job.store.empty() && job.torch_agent_store) {
    return absl::FailedPreconditionError(absl::StrCat(
        "torchrun's agent serves a TCPStore at ", JoinHostPort(job.master_addr, job.master_port),
        " (TORCHELASTIC_USE_AGENT_STORE=True); connect to it as c10d's TCPStore"));
  }
  if (job.store.empty() && job.world_size == 1) {
    if (server.core.secret == net::JobSecret{}) server.core.secret = net::NewJobSecret();
    WEFT_ASSIGN_OR_RETURN(result.server, StoreServer::Start(server));
    client.address = result.server->address();
    client.secret = server.core.secret;
  } else if (job.store.empty()) {
    client.address = JoinHostPort(job.master_addr, job.master_port);
    if (job.rank == Rank(0)) {
      server.listen = client.address;
      WEFT_ASSIGN_OR_RETURN(result.server, StoreServer::Start(server));
    }
  }
  WEFT_ASSIGN_OR_RETURN(result.store, StoreClient::Connect(std::move(client)));
  return result;
}

}  // namespace weft::collectives
