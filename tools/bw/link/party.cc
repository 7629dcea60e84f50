#include "tools/bw/link/party.h"

#include <sodium.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <future>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace weft::link_bw {
namespace {

constexpr size_t kKeyDigits = 16;

std::string HostName() {
  char name[256] = "THIS-HOST";
  gethostname(name, sizeof(name) - 1);
  return name;
}

// Server and client instead of a job.
void BeTwo(const Options& options, collectives::JobEnvironment& job) {
  const bool serves = options.host.empty();
  job.world_size = 2;
  job.store.clear();
  job.master_port = options.port;
  job.master_addr = serves ? "0.0.0.0" : options.host;
  job.rank = Rank(serves ? 0 : 1);
  job.local_world_size = 1;
  std::string key = options.key;
  if (key.empty() && job.secret == net::JobSecret{} && serves) {
    key = collectives::SecretToHex(collectives::NewJobSecret()).substr(0, kKeyDigits);
  }
  if (!key.empty()) {
    crypto_generichash(job.secret.data(), job.secret.size(),
                       reinterpret_cast<const unsigned char*>(key.data()), key.size(), nullptr, 0);
  }
  if (!serves) {
    absl::FPrintF(stderr, "weft-bw link: trying %s, port %d\n", options.host, options.port);
    return;
  }
  absl::FPrintF(stderr, "weft-bw link: waiting for a client:  weft-bw link %s%s%s\n", HostName(),
                options.port == kStandardPort ? "" : absl::StrCat(" -p ", options.port),
                key.empty() ? "" : absl::StrCat(" --key ", key));
}

}  // namespace

absl::StatusOr<Party> Party::Meet(const Options& options) {
  using collectives::JobEnvironment;
  Party party;
  party.timeout_ = options.settings.Duration("store.timeout");
  WEFT_ASSIGN_OR_RETURN(party.environment_, JobEnvironment::FromEnvironment());
  JobEnvironment& job = party.environment_;
  if (job.world_size > 1 && !options.host.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the environment names a job of ", job.world_size,
        " ranks (WORLD_SIZE) and the command line the host ", options.host, ": which is meant?"));
  }
  if (job.torch_agent_store && job.store.empty()) {
    job.torch_agent_store = false;
    ++job.master_port;
  }
  if (job.world_size == 1) BeTwo(options, job);
  // A server waits for its client; a client finds one, or there is none.
  const absl::Duration patience =
      options.host.empty()
          ? party.timeout_
          : std::min(party.timeout_, options.settings.Duration("transport.connect_timeout"));
  absl::StatusOr<collectives::JobStore> store = collectives::StoreFromEnvironment(job, patience);
  if (!store.ok()) {
    return Annotate(store.status(), options.host.empty()
                                        ? absl::StrCat("meet the other ranks")
                                        : absl::StrCat("meet the server on ", options.host));
  }
  party.store_ = *std::move(store);
  return party;
}

absl::StatusOr<std::vector<std::string>> Party::Share(const std::string& mine,
                                                      const std::function<void()>& serve) {
  auto shared = std::async(std::launch::async, [&, turn = turn_++] {
    return store_.store->AllGather(absl::StrCat("weft-bw-link/", turn), rank(), ranks(), mine,
                                   timeout_);
  });
  while (shared.wait_for(std::chrono::seconds(0)) != std::future_status::ready) serve();
  return shared.get();
}

absl::StatusOr<std::vector<nlohmann::json>> Party::ShareJson(const nlohmann::json& mine,
                                                             const std::function<void()>& serve) {
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> texts, Share(mine.dump(), serve));
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
