// The relays of one host in a job of many: that of its ranks, and on every `fan_out`-th host a
// second one above those of the `fan_out` hosts from there on. The root then serves
// hosts / fan_out relays in place of all hosts, and sends each large answer that often; so does
// every relay above, for its hosts.
//
//   root <- relay of hosts 0..31, on host 0   <- relays of hosts 0, 1, ..., 31   <- ranks
//        <- relay of hosts 32..63, on host 32 <- ...
//
// The hosts' addresses need not be known: a relay above listens at a port of its host's choice, and
// writes its address, as the root sees it, into the job's keys. The relays below read it there: one
// connection and one request a host to the root, in the background.
#ifndef WEFT_COLLECTIVES_STORE_RELAY_STORE_RELAY_TREE_H_
#define WEFT_COLLECTIVES_STORE_RELAY_STORE_RELAY_TREE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "collectives/store/relay/store_relay.h"

namespace weft::collectives {

// From so many hosts on, a level of relays above theirs pays.
inline constexpr int kRelayTreeHosts = 64;
// The square root of the hosts, rounded up: as many relays at the root as hosts at each relay. 0,
// none, for fewer than kRelayTreeHosts.
int DefaultFanOut(int hosts);

struct StoreRelayTreeOptions {
  // As for the host's relay alone: `up` is the root, `ranks` those of a host, which all have as
  // many, `first_rank` this host's first.
  StoreRelayOptions relay;
  int host = 0;     // this one's number
  int hosts = 1;    // of the job
  int fan_out = 0;  // hosts below a relay above; 0: no such relays
};

struct StoreRelays {
  // Ends after the one below it, as members do.
  std::unique_ptr<StoreRelay> above;  // null on most hosts
  std::unique_ptr<StoreRelay> host;
};

// kInvalidArgument: a relay above without a secret would serve unauthenticated clients.
absl::StatusOr<StoreRelays> StartRelays(const StoreRelayTreeOptions& options);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_RELAY_STORE_RELAY_TREE_H_
