#include "collectives/rendezvous/job_environment.h"

#include <unistd.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/host_name.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/client/store_addresses.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/protocol/store_hello.h"
#include "net/secret.h"

namespace weft::collectives {
namespace {

constexpr int kIntMax = std::numeric_limits<int>::max();

absl::Status StatusOf(const EnvironmentVariables& variables, Launcher launcher) {
  if (variables.problems().empty()) return absl::OkStatus();
  const bool is_other = launcher == Launcher::kOpenMpi || launcher == Launcher::kSlurm;
  return absl::InvalidArgumentError(
      absl::StrCat("the environment does not say this process's place in its job: ",
                   absl::StrJoin(variables.problems(), "; "),
                   is_other ? absl::StrCat(" (launcher: ", LauncherName(launcher), ")")
                            : " (weft-run and torchrun set these)"));
}

std::string ClientName(const JobEnvironment& job) {
  return absl::StrCat("rank ", job.rank.value(), " pid ", getpid());
}

MeetingPlace PlaceOf(const JobEnvironment& job) {
  if (!job.meeting.address.empty()) return job.meeting;
  const std::string address = JoinHostPort(job.master_addr, job.master_port);
  return {address, address, job.rank == Rank(0)};
}

void ReadStore(EnvironmentVariables& variables, JobEnvironment& job) {
  job.store = variables.Text("WEFT_STORE").value_or("");
  if (!job.store.empty() && !CheckStoreAddress(job.store).ok()) {
    variables.AddProblem(
        absl::StrCat("WEFT_STORE='", job.store, "' is neither host:port nor unix:NAME"));
  }
  if (auto text = variables.Text("WEFT_STORE_PATIENCE"); text.has_value()) {
    const bool good = absl::ParseDuration(*text, &job.store_patience) &&
                      job.store_patience >= absl::ZeroDuration();
    if (!good) {
      variables.AddProblem(absl::StrCat("WEFT_STORE_PATIENCE='", *text, "' is no duration"));
    }
  }
  if (auto hex = variables.Text(net::kSecretVariable); hex.has_value()) {
    auto secret = net::SecretFromHex(*hex);
    if (secret.ok()) {
      job.secret = *secret;
    } else {
      variables.AddProblem(absl::StrCat(net::kSecretVariable, ": ", secret.status().message()));
    }
  }
}

}  // namespace

absl::StatusOr<JobEnvironment> JobEnvironment::Parse(const Lookup& lookup) {
  EnvironmentVariables variables(lookup);
  const LaunchedRank launched = ReadLaunchedRank(variables);
  JobEnvironment job;
  job.launcher = launched.launcher;
  job.rank = Rank(launched.rank);
  job.world_size = launched.world_size;
  job.local_rank = launched.local_rank;
  job.local_world_size = launched.local_world_size;
  job.group_rank = launched.host;
  if (!launched.job.empty()) job.job = launched.job;
  const bool is_torchrun =
      !(job.launcher == Launcher::kOpenMpi || job.launcher == Launcher::kSlurm);
  if (is_torchrun) {
    job.job = variables.Text("TORCHELASTIC_RUN_ID").value_or(job.job);
    const std::string agent = variables.Text("TORCHELASTIC_USE_AGENT_STORE").value_or("");
    job.torch_agent_store = absl::AsciiStrToLower(agent) == "true";
  }
  job.job = variables.Text("WEFT_JOB_ID").value_or(job.job);
  job.generation = variables.Int("WEFT_GENERATION", 0, kIntMax).value_or(0);
  job.recover = variables.Int("WEFT_RECOVER", 0, kIntMax).value_or(0) > 0;
  job.last_end = variables.Text("WEFT_LAST_END").value_or("");
  job.master_addr = variables.Text("MASTER_ADDR").value_or("");
  job.master_port = variables.Int("MASTER_PORT", 1, 65535).value_or(0);
  ReadStore(variables, job);
  if (job.world_size > 1 && job.store.empty()) {
    if (!is_torchrun) {
      // ReadStore() has said what is wrong with one that is there.
      const bool has_secret = variables.Has(net::kSecretVariable);
      job.meeting = FindMeetingPlace(variables, launched, geteuid(), has_secret);
    } else {
      (void)variables.RequiredText("MASTER_ADDR");
      (void)variables.RequiredText("MASTER_PORT");
    }
  }
  WEFT_RETURN_IF_ERROR(StatusOf(variables, job.launcher));
  return job;
}

absl::StatusOr<JobEnvironment> JobEnvironment::FromEnvironment() {
  return Parse(ProcessEnvironment());
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
    const MeetingPlace place = PlaceOf(job);
    client.address = place.address;
    if (place.serves) {
      server.listen = place.listen;
      absl::StatusOr<std::unique_ptr<StoreServer>> started = StoreServer::Start(server);
      if (!started.ok()) {
        return Annotate(started.status(),
                        "serve the job's store (MASTER_PORT chooses another port)");
      }
      result.server = *std::move(started);
    }
  }
  WEFT_ASSIGN_OR_RETURN(result.store, StoreClient::Connect(std::move(client)));
  return result;
}

}  // namespace weft::collectives
