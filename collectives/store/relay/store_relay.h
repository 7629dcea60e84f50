// A relay: the store of one host's ranks, which passes their requests on to the root, so that the
// root serves hosts and not ranks. Serves a Unix socket; its clients are this user's processes. A
// relay may stand above other relays, also of other hosts (store_relay_tree.h).
//
// When the root is gone, every request fails with kUnavailable, which names the relay and the root;
// when the relay is gone, its clients' requests fail with kUnavailable, which names the relay.
#ifndef WEFT_COLLECTIVES_STORE_RELAY_STORE_RELAY_H_
#define WEFT_COLLECTIVES_STORE_RELAY_STORE_RELAY_H_

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/poller.h"
#include "base/socket_address.h"
#include "collectives/store/relay/store_link.h"
#include "collectives/store/relay/store_relay_table.h"
#include "collectives/store/server/store_core.h"
#include "collectives/store/server/store_service.h"

namespace weft::collectives {

struct StoreRelayOptions {
  // "unix:NAME"; empty: a name that nobody can guess. For relays of other hosts: "host:port", for
  // which a secret has to keep unauthenticated clients out, as for a server; answers go there as
  // bytes.
  std::string listen;
  std::string up;                  // the root's address, or that of the relay above
  StoreAddresses::Finder find_up;  // says where `up` is, which then is a name for messages
  net::JobSecret secret{};
  std::string name;  // "weft-run pid 123"
  std::string job;
  std::string host;
  int32_t first_rank = 0;  // of this host's
  int32_t ranks = 1;
  int32_t world = 1;
  int32_t generation = 0;
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration reconnect = absl::Seconds(2);
  std::optional<SocketAddress> source;  // to dial from
  // The job's key under which the root is told this relay's address, as it is known on the way
  // there; empty: none.
  std::string publish;
};

// A relay in somebody's poller. The poller outlives it.
class StoreRelayNode {
 public:
  static absl::StatusOr<std::unique_ptr<StoreRelayNode>> Start(Poller& poller,
                                                               const StoreRelayOptions& options);

  // Once a turn, after the poller's; cheap where nothing has happened.
  void Settle(absl::Time now);
  absl::Time deadline() const;
  const std::string& address() const { return service_->address(); }
  const StoreClientCore& up() const { return up_; }
  StoreCore& core() { return core_; }

 private:
  StoreRelayNode(Poller& poller, const StoreRelayOptions& options);
  void Publish();

  const std::string root_;  // options' `up`
  std::string publish_;     // and `publish`, until that is done
  bool touched_ = true;
  absl::Time due_ = absl::InfinitePast();  // no later than deadline()
  StoreClientCore up_;
  StoreRelayTable table_;
  StoreCore core_;
  StoreLink link_;
  std::unique_ptr<StoreService> service_;
};

// A relay with a thread of its own.
class StoreRelay {
 public:
  static absl::StatusOr<std::unique_ptr<StoreRelay>> Start(const StoreRelayOptions& options);
  virtual ~StoreRelay() = default;                 // stops
  virtual const std::string& address() const = 0;  // "unix:NAME", "[::]:40123"
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_RELAY_STORE_RELAY_H_
