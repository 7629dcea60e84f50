#include "collectives/rendezvous/store_relay_tree.h"

#include <sys/socket.h>

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "collectives/rendezvous/socket_address.h"
#include "collectives/rendezvous/store_client.h"

namespace weft::collectives {
namespace {

// A host asks the root anew for where its relay is, should that have come in between.
constexpr absl::Duration kAsk = absl::Seconds(30);

std::string KeyOf(int group) { return absl::StrCat("weft-relay/", group); }

std::string HostsOf(const StoreRelayTreeOptions& options, int group) {
  int first = group * options.fan_out;
  return absl::StrCat(first, "..", std::min(first + options.fan_out, options.hosts) - 1);
}

StoreClientOptions ClientOptions(const StoreRelayOptions& relay, absl::Duration connect_timeout) {
  StoreClientOptions client;
  client.address = relay.up;
  client.secret = relay.secret;
  client.name = absl::StrCat("relay ", relay.name);
  client.job = relay.job;
  client.host = relay.host;
  client.connect_timeout = connect_timeout;
  client.reconnect = relay.reconnect;
  return client;
}

// This host's address on the way to `root`, with `port`. Where that way does not leave the host,
// others know the host by the name that they know the root by.
absl::StatusOr<std::string> AddressTowards(const std::string& root, int port) {
  WEFT_ASSIGN_OR_RETURN(std::vector<SocketAddress> addresses, Resolve(root));
  const SocketAddress& to = addresses[0];
  FileDescriptor socket(::socket(to.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  SocketAddress own;
  own.size = sizeof(own.storage);
  if (!socket.valid() || connect(socket.get(), to.get(), to.size) != 0 ||  // sends nothing
      getsockname(socket.get(), own.get(), &own.size) != 0) {
    return ErrnoStatus(errno, absl::StrCat("find the way to the store at ", root));
  }
  if (own.loopback()) return JoinHostPort(root.substr(0, root.rfind(':')), port);
  std::string text = ToString(own);
  return JoinHostPort(text.substr(0, text.rfind(':')), port);
}

// In the background: the root's launcher may start later.
void Publish(const StoreRelayTreeOptions& options, int group, int port) {
  std::thread([relay = options.relay, key = KeyOf(group), port] {
    auto publish = [&]() -> absl::Status {
      WEFT_ASSIGN_OR_RETURN(auto store,
                            StoreClient::Connect(ClientOptions(relay, relay.connect_timeout)));
      WEFT_ASSIGN_OR_RETURN(std::string address, AddressTowards(relay.up, port));
      return store->Set(key, address);
    };
    if (absl::Status status = publish(); !status.ok()) {
      WEFT_LOG_ERROR(
          "{}: cannot tell the store at {} where it is, so that the hosts below it wait "
          "in vain: {}",
          relay.name, relay.up, std::string(status.message()));
    }
  }).detach();
}

StoreAddresses::Finder FinderOf(const StoreRelayTreeOptions& options, int group) {
  return [relay = options.relay, key = KeyOf(group), hosts = HostsOf(options, group),
          first = group * options.fan_out]() -> absl::StatusOr<std::vector<SocketAddress>> {
    WEFT_ASSIGN_OR_RETURN(auto store, StoreClient::Connect(ClientOptions(relay, kAsk)));
    auto address = store->Get(key, kAsk);
    if (!address.ok()) {
      return Annotate(address.status(), absl::StrCat("find the relay of hosts ", hosts,
                                                     ", which host ", first, " serves"));
    }
    return Resolve(*address);
  };
}

absl::StatusOr<std::unique_ptr<StoreRelay>> StartAbove(const StoreRelayTreeOptions& options,
                                                       int group) {
  if (options.relay.secret == net::JobSecret{}) {
    return absl::InvalidArgumentError(
        "a relay for other hosts without a secret would serve strangers; give it a secret "
        "(WEFT_JOB_SECRET)");
  }
  StoreRelayOptions above = options.relay;
  int hosts = std::min(options.fan_out, options.hosts - group * options.fan_out);
  above.listen = ":0";
  above.name = absl::StrCat(options.relay.name, " for hosts ", HostsOf(options, group));
  above.ranks = hosts * options.relay.ranks;
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<StoreRelay> relay, StoreRelay::Start(above));
  const std::string& address = relay->address();
  Publish(options, group, std::stoi(address.substr(address.rfind(':') + 1)));
  return relay;
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
