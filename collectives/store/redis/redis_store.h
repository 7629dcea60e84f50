// Our Store on a Redis server, for sites that have one. Version 5 or later; pure client library
// (hiredis). Values live in one hash a job, so that jobs do not see each other's; what must be
// atomic is a Lua script. Waiting is a subscription, not polling.
//
// Differs from StoreClient: a call whose connection is lost fails with kUnavailable, and it is
// unknown whether it was executed; replaced ranks are not fenced; Redis' own limits on memory hold.
//
// A connection for each call that is under way at one time. Thread-safe.
#ifndef WEFT_COLLECTIVES_STORE_REDIS_REDIS_STORE_H_
#define WEFT_COLLECTIVES_STORE_REDIS_REDIS_STORE_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/store/store.h"

namespace weft::collectives {

struct RedisStoreOptions {
  std::string address;   // "host:6379"
  std::string password;  // AUTH; empty: none
  std::string job = "job";
  absl::Duration connect_timeout = absl::Seconds(30);
  absl::Duration call_timeout = absl::Minutes(1);  // for calls that have no timeout of their own
};

// kDeadlineExceeded or kUnavailable: nobody answers there; kPermissionDenied: wrong password.
absl::StatusOr<std::unique_ptr<Store>> ConnectRedisStore(RedisStoreOptions options);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_REDIS_REDIS_STORE_H_
