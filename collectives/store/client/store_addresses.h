// The addresses of a store's server, for its clients: looked up in a thread of their own, because
// the name service may take seconds and cannot be interrupted. The answer is remembered, so that
// reconnecting does not wait for it; Refresh() finds a server that has moved. Nothing is ever
// looked up in reverse. Not thread-safe.
#ifndef WEFT_COLLECTIVES_STORE_CLIENT_STORE_ADDRESSES_H_
#define WEFT_COLLECTIVES_STORE_CLIENT_STORE_ADDRESSES_H_

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/socket_address.h"

namespace weft::collectives {

// Whether a store's address makes sense: "host:port", or "unix:NAME".
absl::Status CheckStoreAddress(absl::string_view address);

class StoreAddresses {
 public:
  // "host:port" or "unix:NAME". Numeric ones are known at once.
  explicit StoreAddresses(std::string name);
  // Asked in place of the resolver, in a thread that may outlive this; `name` is for messages.
  using Finder = std::function<absl::StatusOr<std::vector<SocketAddress>>()>;
  StoreAddresses(std::string name, Finder finder);

  // At least one address, in the resolver's order, or why there is none (the next call asks again).
  // Without a value while the first answer is under way.
  std::optional<absl::StatusOr<std::vector<SocketAddress>>> Poll();
  // The same, but waits for the first answer; kDeadlineExceeded.
  absl::StatusOr<std::vector<SocketAddress>> Await(absl::Time deadline);
  // What is known did not help: asks anew, though not more than once in 5 s, while Poll() gives
  // what is known.
  void Refresh();

  const std::string& name() const { return name_; }

 private:
  struct LookUp;
  void Ask();
  void TakeAnswer();

  const std::string name_;
  const Finder finder_;
  bool numeric_ = false;
  std::vector<SocketAddress> known_;
  absl::Status error_;
  std::shared_ptr<LookUp> look_up_;  // under way
  absl::Time asked_ = absl::InfinitePast();
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_CLIENT_STORE_ADDRESSES_H_
