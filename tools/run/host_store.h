// What a host's weft-run serves to its ranks: the job's store, on the first host, and a relay to
// it.
#ifndef WEFT_TOOLS_RUN_HOST_STORE_H_
#define WEFT_TOOLS_RUN_HOST_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/store/relay/store_relay_tree.h"
#include "collectives/store/server/store_server.h"
#include "tools/run/launcher.h"

namespace weft::run {

struct HostStore {
  std::string address;  // for the ranks of this host
  std::string secret_hex;
  int master_port = 0;
  // The server and relays of this process; null where it serves none.
  std::unique_ptr<collectives::StoreServer> server;
  collectives::StoreRelays relays;
};

// The relay of one host's ranks to the store at `up`; `program` is for messages: "weft-run".
collectives::StoreRelayOptions HostRelay(const RunOptions& options, const std::string& program,
                                         const std::string& up, const net::JobSecret& secret);

// kInvalidArgument: a job of several hosts without a secret, or a fan-out without a relay of this
// host. kAlreadyExists: with
// options.recover, a store that somebody else serves has the end or the epochs of an earlier run of
// a job of that name.
absl::StatusOr<HostStore> ServeHost(const RunOptions& options);

// Whether all ranks have said in the store at `host.address` that what the job is for is done, as a
// process that is started anew learns it (collectives/recovery.h).
absl::StatusOr<bool> IsJobOver(const RunOptions& options, const HostStore& host);

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_HOST_STORE_H_
