#include "collectives/store/relay/store_relay_tree.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/client/store_client.h"

namespace weft::collectives {
namespace {

// A host asks the root anew for where its relay is, should that have come in between.
constexpr absl::Duration kAsk = absl::Seconds(30);

std::string KeyOf(int group) { return absl::StrCat("weft-relay/", group); }

std::string HostsOf(const StoreRelayTreeOptions& options, int group) {
  int first = group * options.fan_out;
  return absl::StrCat(first, "..", std::min(first + options.fan_out, options.hosts) - 1);
}

StoreClientOptions ClientOptions(const StoreRelayOptions& relay) {
  StoreClientOptions client;
  client.address = relay.up;
  client.secret = relay.secret;
  client.name = absl::StrCat("relay ", relay.name);
  client.job = relay.job;
  client.host = relay.host;
  client.connect_timeout = kAsk;
  client.reconnect = relay.reconnect;
  return client;
}

StoreAddresses::Finder FinderOf(const StoreRelayTreeOptions& options, int group) {
  return [relay = options.relay, key = KeyOf(group), hosts = HostsOf(options, group),
          first = group * options.fan_out]() -> absl::StatusOr<std::vector<SocketAddress>> {
    WEFT_ASSIGN_OR_RETURN(auto store, StoreClient::Connect(ClientOptions(relay)));
    auto address = store->Get(key, kAsk);
    if (!address.ok()) {
      return Annotate(address.status(), absl::StrCat("find the relay of hosts ", hosts,
                                                     ", which host ", first, " serves"));
    }
    return ResolveHostPort(*address);
  };
}

absl::StatusOr<std::unique_ptr<StoreRelay>> StartAbove(const StoreRelayTreeOptions& options,
                                                       int group) {
  if (options.relay.secret == net::JobSecret{}) {
    return absl::InvalidArgumentError(
        "a relay for other hosts without a secret would serve unauthenticated clients; give it a "
        "secret (WEFT_JOB_SECRET)");
  }
  StoreRelayOptions above = options.relay;
  int hosts = std::min(options.fan_out, options.hosts - group * options.fan_out);
  above.listen = ":0";
  above.name = absl::StrCat(options.relay.name, " for hosts ", HostsOf(options, group));
  above.ranks = hosts * options.relay.ranks;
  above.publish = KeyOf(group);
  return StoreRelay::Start(above);
}

}  // namespace

int DefaultFanOut(int hosts) {
  if (hosts < kRelayTreeHosts) return 0;
  int fan_out = 1;
  while (fan_out * fan_out < hosts) ++fan_out;
  return fan_out;
}

absl::StatusOr<StoreRelays> StartRelays(const StoreRelayTreeOptions& options) {
  StoreRelays relays;
  StoreRelayOptions own = options.relay;
  if (options.fan_out > 0) {
    int group = options.host / options.fan_out;
    if (options.host % options.fan_out == 0) {
      WEFT_ASSIGN_OR_RETURN(relays.above, StartAbove(options, group));
    }
    own.up = absl::StrCat("the relay of hosts ", HostsOf(options, group));
    own.find_up = FinderOf(options, group);
  }
  WEFT_ASSIGN_OR_RETURN(relays.host, StoreRelay::Start(own));
  return relays;
}

}  // namespace weft::collectives
