// Connections to one Redis server (hiredis), as many as there are calls under way at one time; with
// errors in our terms. Thread-safe; after fork(), the child makes its own.
#ifndef WEFT_COLLECTIVES_STORE_REDIS_REDIS_CONNECTION_H_
#define WEFT_COLLECTIVES_STORE_REDIS_REDIS_CONNECTION_H_

#include <hiredis/hiredis.h>
#include <sys/types.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "collectives/store/redis/redis_store.h"

namespace weft::collectives::redis {

struct ReplyDeleter {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, ReplyDeleter>;
struct ContextDeleter {
  void operator()(redisContext* context) const { redisFree(context); }
};
using Context = std::unique_ptr<redisContext, ContextDeleter>;
using Words = std::vector<std::string>;

std::string TextOf(const redisReply& reply);
Words ListOf(const redisReply& reply);

class Connections {
 public:
  explicit Connections(RedisStoreOptions options) : options_(std::move(options)) {}

  // Waits for the server; kPermissionDenied at once.
  absl::Status Begin();

  // One command. kUnavailable: the connection was lost, and it is unknown whether it was executed;
  // kUnknown: Redis' own error.
  absl::StatusOr<Reply> Call(const Words& words);

  // A connection that has subscribed to these channels.
  absl::StatusOr<Context> Listen(const Words& channels);
  // The next message there; kDeadlineExceeded.
  absl::Status Hear(redisContext& context, absl::Time deadline) const;

  const RedisStoreOptions& options() const { return options_; }

 private:
  absl::Status Gone(absl::string_view why) const;
  absl::StatusOr<Context> Dial(absl::Duration timeout) const;
  absl::StatusOr<Context> DialOne(const std::string& host, absl::Duration timeout) const;
  absl::StatusOr<Reply> CallOn(redisContext& context, const Words& words) const;
  absl::StatusOr<Context> Borrow();
  void Return(Context context);

  const RedisStoreOptions options_;
  std::vector<std::string> hosts_;  // numeric: hiredis would look names up again and again
  int port_ = 0;
  SystemClock clock_;
  std::mutex mutex_;
  pid_t owner_ = -1;  // of those that are idle
  std::vector<Context> idle_;
};

}  // namespace weft::collectives::redis

#endif  // WEFT_COLLECTIVES_STORE_REDIS_REDIS_CONNECTION_H_
