#include "tools/run/host_store.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/host_name.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/recovery.h"
#include "collectives/store/client/store_client.h"
#include "collectives/store/protocol/store_hello.h"
#include "net/secret.h"

namespace weft::run {
namespace {

// For the launcher's own question to the store, which holds up the output of its ranks.
constexpr absl::Duration kAskMost = absl::Seconds(2);

// The secret of a job of several hosts comes from outside: all must have the same.
absl::StatusOr<net::JobSecret> SecretOf(const RunOptions& options) {
  WEFT_ASSIGN_OR_RETURN(net::JobSecret given, net::SecretFromEnvironment());
  if (given != net::JobSecret{}) return given;
  if (options.nodes > 1 || !options.store.empty()) {
    return absl::InvalidArgumentError(
        "WEFT_JOB_SECRET is not set; a job of several hosts, or with a store of its own, needs "
        "the same 64 hexadecimal digits everywhere (openssl rand -hex 32)");
  }
  return net::NewJobSecret();
}

// Sets where the store is, and serves it on the first host.
absl::Status ServeStore(const RunOptions& options, const net::JobSecret& secret, HostStore& host) {
  int port = options.store_port;
  if (port == 0 && options.nodes > 1) port = options.master_port + 1;
  host.address = JoinHostPort(options.master_addr, port);
  if (options.node_rank > 0) return absl::OkStatus();
  collectives::StoreServerOptions server;
  server.listen = options.nodes > 1 ? absl::StrCat(":", port) : host.address;
  server.core.secret = secret;
  server.core.description = absl::StrCat("weft-run pid ", getpid());
  // A client that comes back within its patience has its replies, so that nothing is done twice.
  server.core.session_linger = std::max(server.core.session_linger, 2 * options.store_patience);
  WEFT_ASSIGN_OR_RETURN(host.server, collectives::StoreServer::Start(server));
  if (options.nodes == 1) host.address = host.server->address();
  return absl::OkStatus();
}

bool RelayHelps(const RunOptions& options, const std::string& store) {
  if (options.ranks == 1) return false;
  if (options.nodes > 1) return true;
  // A name is not looked up for this.
  auto addresses = ResolveNumeric(store);
  return !addresses.ok() || !addresses->front().is_loopback();
}

absl::Status ServeRelay(const RunOptions& options, const net::JobSecret& secret, HostStore& host) {
  collectives::StoreRelayTreeOptions tree;
  tree.host = options.node_rank;
  tree.hosts = options.nodes;
  tree.fan_out = options.fan_out.value_or(collectives::DefaultFanOut(options.nodes));
  tree.relay = HostRelay(options, "weft-run", host.address, secret);
  WEFT_ASSIGN_OR_RETURN(host.relays, collectives::StartRelays(tree));
  host.address = host.relays.host->address();
  return absl::OkStatus();
}

// The launcher's own connection to the job's store.
absl::StatusOr<std::unique_ptr<collectives::StoreClient>> ConnectStore(const RunOptions& options,
                                                                       const HostStore& host) {
  collectives::StoreClientOptions client;
  client.address = host.address;
  WEFT_ASSIGN_OR_RETURN(client.secret, net::SecretFromHex(host.secret_hex));
  client.name = absl::StrCat("weft-run pid ", getpid());
  client.job = options.job.substr(0, collectives::kStoreJobBytesMax);
  client.host = HostName();
  client.connect_timeout = client.call_timeout = kAskMost;
  return collectives::StoreClient::Connect(client);
}

// A rank that is started anew would take the end and the epochs of an earlier run for those of this
// one. Not where an outer launcher starts these ranks anew: the keys are those of its run, from
// which they may learn that there is nothing left to do.
absl::Status RefuseEarlierRun(const RunOptions& options, const HostStore& host) {
  if (options.store.empty() || options.recover == 0) return absl::OkStatus();
  if (std::getenv("WEFT_GENERATION") != nullptr) return absl::OkStatus();
  const auto store = ConnectStore(options, host);
  if (!store.ok()) return absl::OkStatus();  // the ranks will say so
  std::vector<int> own = options.planned.ranks;
  if (own.empty()) {
    own.resize(static_cast<size_t>(options.ranks));
    std::iota(own.begin(), own.end(), options.node_rank * options.ranks);
  }
  const bool is_over = collectives::Recovery::IsOver(**store).value_or(false);
  const bool have_met =
      collectives::Recovery::HaveMet(**store, own, options.ranks * options.nodes).value_or(false);
  if (!is_over && !have_met) return absl::OkStatus();
  return absl::AlreadyExistsError(absl::StrCat(
      "job '", options.job,
      is_over ? "' is over in" : "' was run before, and started ranks anew, in", " the store at ",
      options.store, ", which keeps its keys: give another --job name, or another store"));
}

// For MASTER_PORT, which only programs with a rendezvous of their own listen at.
absl::StatusOr<int> FreePort() {
  WEFT_ASSIGN_OR_RETURN(auto probe, collectives::StoreServer::Start({}));
  return probe->port();
}

}  // namespace

collectives::StoreRelayOptions HostRelay(const RunOptions& options, const std::string& program,
                                         const std::string& up, const net::JobSecret& secret) {
  collectives::StoreRelayOptions relay;
  relay.up = up;
  relay.secret = secret;
  relay.name = absl::StrCat(program, " pid ", getpid());
  relay.job = options.job.substr(0, collectives::kStoreJobBytesMax);
  relay.host = HostName();
  relay.first_rank = options.node_rank * options.ranks;
  relay.ranks = options.ranks;
  relay.world = options.ranks * options.nodes;
  relay.reconnect = options.store_patience;
  relay.connect_timeout = absl::Minutes(5);  // the root's launcher may start later
  return relay;
}

absl::StatusOr<HostStore> ServeHost(const RunOptions& options) {
  HostStore host;
  WEFT_ASSIGN_OR_RETURN(const net::JobSecret secret, SecretOf(options));
  host.secret_hex = net::SecretToHex(secret);
  host.address = options.store;
  if (host.address.empty()) WEFT_RETURN_IF_ERROR(ServeStore(options, secret, host));
  if (options.relay.value_or(RelayHelps(options, host.address))) {
    WEFT_RETURN_IF_ERROR(ServeRelay(options, secret, host));
  } else if (options.fan_out.value_or(0) > 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--fan-out ", *options.fan_out, ": relays above the hosts' relays need --relay"));
  }
  WEFT_RETURN_IF_ERROR(RefuseEarlierRun(options, host));
  host.master_port = options.master_port;
  if (host.master_port == 0) {
    WEFT_ASSIGN_OR_RETURN(host.master_port, FreePort());
  }
  return host;
}

absl::StatusOr<bool> IsJobOver(const RunOptions& options, const HostStore& host) {
  WEFT_ASSIGN_OR_RETURN(const auto store, ConnectStore(options, host));
  return collectives::Recovery::IsOver(*store);
}

}  // namespace weft::run
