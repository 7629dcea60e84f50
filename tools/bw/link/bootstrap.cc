#include "tools/bw/link/bootstrap.h"

#include <algorithm>
#include <chrono>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/host_name.h"
#include "base/json_text.h"
#include "base/status.h"
#include "net/secret.h"
#include "tools/bw/link/key.h"

namespace weft::link_bw {
namespace {

// Server and client instead of a job.
absl::Status BeTwo(const Options& options, collectives::JobEnvironment& job) {
  const bool serves = options.host.empty();
  job.world_size = 2;
  job.store.clear();
  job.master_port = options.port;
  job.master_addr = serves ? options.listen : options.host;
  job.rank = Rank(serves ? 0 : 1);
  job.local_world_size = 1;
  std::string drawn;
  if (!options.key.empty()) {
    WEFT_ASSIGN_OR_RETURN(job.secret, SecretFromKeyFile(options.key));
  } else if (job.secret == net::JobSecret{} && serves) {
    job.secret = net::NewJobSecret();
    // In the client's environment, where other users do not see it.
    drawn = absl::StrCat(net::kSecretVariable, "=", net::SecretToHex(job.secret), " ");
  } else if (job.secret == net::JobSecret{}) {
    return absl::InvalidArgumentError(
        absl::StrCat("a client needs its server's key: ", net::kSecretVariable,
                     "=... as the server prints it, or the same --key @FILE on both"));
  }
  if (!serves) {
    absl::FPrintF(stderr, "weft-bw link: trying %s, port %d\n", options.host, options.port);
    return absl::OkStatus();
  }
  absl::FPrintF(stderr, "weft-bw link: waiting for a client:  %sweft-bw link %s%s%s\n", drawn,
                options.listen == "0.0.0.0" || options.listen == "::" ? HostName() : options.listen,
                options.port == kStandardPort ? "" : absl::StrCat(" -p ", options.port),
                options.key.empty() ? "" : " --key @FILE");
  return absl::OkStatus();
}

// Exchanges a secret through the store, in a job without one, whose store is on this host only.
absl::Status AgreeOnSecret(collectives::Store& store, const std::string& meeting,
                           absl::Duration timeout, collectives::JobEnvironment& job) {
  if (job.secret != net::JobSecret{}) return absl::OkStatus();
  const std::string key = absl::StrCat(meeting, "/secret");
  if (job.rank == Rank(0)) {
    job.secret = net::NewJobSecret();
    return store.Set(key, net::SecretToHex(job.secret));
  }
  WEFT_ASSIGN_OR_RETURN(const std::string hex, store.Get(key, timeout));
  WEFT_ASSIGN_OR_RETURN(job.secret, net::SecretFromHex(hex));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Bootstrap> Bootstrap::Join(const Options& options) {
  using collectives::JobEnvironment;
  Bootstrap bootstrap;
  bootstrap.timeout_ = options.settings.Duration("store.timeout");
  bootstrap.meeting_ = options.meeting;
  WEFT_ASSIGN_OR_RETURN(bootstrap.environment_, JobEnvironment::FromEnvironment());
  JobEnvironment& job = bootstrap.environment_;
  if (job.world_size > 1 && !options.host.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the environment names a job of ", job.world_size,
        " ranks (WORLD_SIZE) and the command line the host ", options.host, ": which is meant?"));
  }
  if (job.torch_agent_store && job.store.empty()) {
    job.torch_agent_store = false;
    ++job.master_port;
  }
  if (job.world_size == 1) WEFT_RETURN_IF_ERROR(BeTwo(options, job));
  // A server waits for its client; a client finds one, or there is none.
  const absl::Duration patience =
      options.host.empty()
          ? bootstrap.timeout_
          : std::min(bootstrap.timeout_, options.settings.Duration("transport.connect_timeout"));
  absl::StatusOr<collectives::JobStore> store = collectives::StoreFromEnvironment(job, patience);
  if (!store.ok()) {
    return Annotate(store.status(), options.host.empty()
                                        ? absl::StrCat("meet the other ranks")
                                        : absl::StrCat("meet the server on ", options.host));
  }
  bootstrap.store_ = *std::move(store);
  WEFT_RETURN_IF_ERROR(
      AgreeOnSecret(*bootstrap.store_.store, bootstrap.meeting_, bootstrap.timeout_, job));
  return bootstrap;
}

absl::StatusOr<std::vector<std::string>> Bootstrap::AllGather(const std::string& mine,
                                                              const std::function<void()>& serve,
                                                              absl::Duration busy) {
  auto shared = std::async(std::launch::async, [&, turn = turn_++] {
    return store_.store->AllGather(absl::StrCat(meeting_, "/", turn), rank(), ranks(), mine,
                                   timeout_ + busy);
  });
  while (shared.wait_for(std::chrono::seconds(0)) != std::future_status::ready) serve();
  return shared.get();
}

absl::StatusOr<std::vector<nlohmann::json>> Bootstrap::AllGatherJson(
    const nlohmann::json& mine, const std::function<void()>& serve, absl::Duration busy) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> texts, AllGather(JsonText(mine), serve, busy));
  std::vector<nlohmann::json> all;
  for (size_t rank = 0; rank < texts.size(); ++rank) {
    all.push_back(nlohmann::json::parse(texts[rank], nullptr, /*allow_exceptions=*/false));
    if (all.back().is_discarded()) {
      return absl::DataLossError(absl::StrCat("rank ", rank, " said what is no JSON"));
    }
  }
  return all;
}

}  // namespace weft::link_bw
