// A Store on a StoreServer somewhere: one socket, any number of threads, replies in any order, so
// that one thread's wait holds up no other thread's call.
//
// It has no thread of its own: one of the threads that wait for replies reads for all, and hands
// that duty on when its own reply has come or its time is up. A lost connection is made again, and
// requests without a reply are sent again; the server executes each once. When that does not
// succeed in `reconnect`, not counting the time in which no call waits, the store is gone: all
// calls, waiting and future, return kUnavailable with the store's address and the process that
// served it. Thread-safe. After fork(), only the parent may use it: in the child, calls fail with
// kFailedPrecondition, and the destructor leaves the session as it is.
#ifndef WEFT_COLLECTIVES_STORE_CLIENT_STORE_CLIENT_H_
#define WEFT_COLLECTIVES_STORE_CLIENT_STORE_CLIENT_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/ids.h"
#include "collectives/store/store.h"
#include "net/transport.h"

namespace weft::collectives {

struct StoreClientOptions {
  std::string address;      // of the server, "host:port"; or of a relay, "unix:NAME"
  net::JobSecret secret{};  // the server's; all zero: none
  std::string name;         // for the server's messages: "rank 3 pid 4711"
  std::string job;          // the name space of its keys; at most kStoreJobBytesMax
  std::string host;         // for messages
  // The rank that this process is, if any. A client of a higher generation fences those of lower
  // ones: what they wait for and whatever they ask fails with kAborted.
  Rank rank;
  int32_t generation = 0;
  // How long the first connection may take; the server may start after its clients.
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration reconnect = absl::Seconds(2);
  // The server's host counts as gone when nothing has come from it for so long; whole seconds, at
  // least 3.
  absl::Duration silence = absl::Seconds(20);
  // For calls that have no timeout of their own.
  absl::Duration call_timeout = absl::Minutes(1);
};

// Kinds of calls that have a timeout.
enum class StoreWaits : uint8_t { kWatches, kOthers };

class StoreClient : public Store {
 public:
  // kDeadlineExceeded: no server listens there; kPermissionDenied: the secret is wrong.
  static absl::StatusOr<std::unique_ptr<StoreClient>> Connect(StoreClientOptions options);

  // What the server says of itself: "weft-run pid 123".
  virtual std::string server() const = 0;

  // From now on, calls that wait for what others do return `why` at once, those under way too; with
  // an OK status they wait again. A call that ends so may have had its effect on the store.
  virtual void RefuseWaits(StoreWaits which, const absl::Status& why) = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_CLIENT_STORE_CLIENT_H_
