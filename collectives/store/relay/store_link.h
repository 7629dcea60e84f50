// A StoreClientCore's connection in a poller: dials without blocking, dials again when the
// connection is lost, moves bytes. For relays, and for programs that simulate many ranks.
#ifndef WEFT_COLLECTIVES_STORE_RELAY_STORE_LINK_H_
#define WEFT_COLLECTIVES_STORE_RELAY_STORE_LINK_H_

#include <functional>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "base/poller.h"
#include "base/socket_address.h"
#include "collectives/store/client/store_addresses.h"
#include "collectives/store/client/store_client_core.h"

namespace weft::collectives {

struct StoreLinkOptions {
  std::string address;          // of the server; a name is looked up without holding up the poller
  StoreAddresses::Finder find;  // says where that is; null: the resolver
  std::optional<SocketAddress> source;  // to dial from; port 0
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration reconnect = absl::Seconds(2);
};

class StoreLink final : public PollHandler {
 public:
  // `changed` is called after the core's state changed or answers came; the poller, the core and
  // what `changed` uses outlive the link.
  StoreLink(Poller& poller, StoreClientCore& core, StoreLinkOptions options,
            std::function<void()> changed);
  ~StoreLink() override;
  StoreLink(const StoreLink&) = delete;
  StoreLink& operator=(const StoreLink&) = delete;

  void Dial();   // once, to begin with
  void Flush();  // after core.Call()
  void Advance(absl::Time now);
  absl::Time deadline() const { return next_dial_; }
  void OnEvents(uint32_t events, absl::Time now) override;
  absl::StatusOr<SocketAddress> LocalAddress() const;  // of the connection
  // Errors of dialling since the last connection: what there is to say when time is up.
  const absl::Status& last_error() const { return last_error_; }

 private:
  bool FindAddress();
  void Drop(const absl::Status& why);
  bool FinishConnect(uint32_t events);
  bool Read();
  void Watch();

  StoreClientCore& core_;
  const StoreLinkOptions options_;
  const std::function<void()> changed_;
  StoreAddresses addresses_;
  size_t attempt_ = 0;
  SocketAddress address_;  // of this attempt
  FileDescriptor socket_;
  bool connecting_ = false;
  uint32_t watched_ = 0;
  absl::Duration pause_;
  absl::Time give_up_ = absl::InfiniteFuture();    // while there is no connection
  absl::Time next_dial_ = absl::InfiniteFuture();  // or the end of this attempt
  absl::Status last_error_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_RELAY_STORE_LINK_H_
