#include "collectives/store/redis/redis_connection.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/client/store_addresses.h"

namespace weft::collectives::redis {
namespace {

constexpr absl::Duration kRetry = absl::Milliseconds(20);

timeval TimevalOf(absl::Duration time) {
  return absl::ToTimeval(std::clamp(time, absl::Milliseconds(1), absl::Hours(24)));
}

}  // namespace

std::string TextOf(const redisReply& reply) { return std::string(reply.str, reply.len); }

Words ListOf(const redisReply& reply) {
  Words list;
  for (size_t i = 0; i < reply.elements; ++i) list.push_back(TextOf(*reply.element[i]));
  return list;
}

absl::Status Connections::Begin() {
  absl::Time deadline = clock_.Now() + options_.connect_timeout;
  WEFT_ASSIGN_OR_RETURN(std::vector<SocketAddress> known,
                        StoreAddresses(options_.address).Await(deadline));
  for (const SocketAddress& address : known) {
    WEFT_ASSIGN_OR_RETURN(auto parts, SplitHostPort(address.ToString()));
    hosts_.push_back(parts.first);
    port_ = parts.second;
  }
  while (true) {
    auto context = Dial(deadline - clock_.Now());
    if (context.ok()) {
      Return(*std::move(context));
      return absl::OkStatus();
    }
    bool hopeless = absl::IsPermissionDenied(context.status());
    if (hopeless || clock_.Now() + kRetry >= deadline) return context.status();
    std::this_thread::sleep_for(absl::ToChronoNanoseconds(kRetry));
  }
}

absl::Status Connections::Gone(absl::string_view why) const {
  return absl::UnavailableError(absl::StrCat("the Redis at ", options_.address, " is gone: ", why));
}

absl::StatusOr<Context> Connections::Dial(absl::Duration timeout) const {
  absl::StatusOr<Context> context = absl::NotFoundError("Redis has no address");
  for (const std::string& host : hosts_) {
    context = DialOne(host, timeout / static_cast<int64_t>(hosts_.size()));
    if (context.ok() || absl::IsPermissionDenied(context.status())) break;
  }
  return context;
}

absl::StatusOr<Context> Connections::DialOne(const std::string& host,
                                             absl::Duration timeout) const {
  Context context(redisConnectWithTimeout(host.c_str(), port_, TimevalOf(timeout)));
  if (context == nullptr || context->err != 0) {
    return Gone(context == nullptr ? "no memory" : context->errstr);
  }
  redisEnableKeepAlive(context.get());
  redisSetTimeout(context.get(), TimevalOf(options_.call_timeout));
  if (!options_.password.empty()) {
    auto reply = CallOn(*context, {"AUTH", options_.password});
    if (!reply.ok()) return absl::PermissionDeniedError(reply.status().message());
  }
  WEFT_RETURN_IF_ERROR(CallOn(*context, {"PING"}).status());
  return context;
}

absl::StatusOr<Context> Connections::Borrow() {
  {
    std::lock_guard lock(mutex_);
    if (owner_ != getpid()) idle_.clear();  // our parent's
    while (!idle_.empty()) {
      Context context = std::move(idle_.back());
      idle_.pop_back();
      // Redis, or what stands before it, may have closed it meanwhile. Nothing else is due on it.
      pollfd end{context->fd, POLLIN, 0};
      if (poll(&end, 1, 0) == 0) return context;
    }
  }
  return Dial(options_.call_timeout);
}

void Connections::Return(Context context) {
  std::lock_guard lock(mutex_);
  if (owner_ != getpid()) idle_.clear();
  owner_ = getpid();
  if (context->err == 0) idle_.push_back(std::move(context));
}

absl::StatusOr<Reply> Connections::CallOn(redisContext& context, const Words& words) const {
  std::vector<const char*> texts;
  std::vector<size_t> sizes;
  for (const std::string& word : words) {
    texts.push_back(word.data());
    sizes.push_back(word.size());
  }
  Reply reply(static_cast<redisReply*>(
      redisCommandArgv(&context, static_cast<int>(words.size()), texts.data(), sizes.data())));
  if (reply == nullptr) return Gone(context.errstr);
  if (reply->type != REDIS_REPLY_ERROR) return reply;
  std::string error = TextOf(*reply);
  if (absl::StartsWith(error, "NOAUTH") || absl::StartsWith(error, "WRONGPASS")) {
    return absl::PermissionDeniedError(absl::StrCat("Redis: ", error));
  }
  if (absl::StartsWith(error, "OOM")) {
    return absl::ResourceExhaustedError(absl::StrCat("Redis: ", error));
  }
  return absl::UnknownError(error);
}

absl::StatusOr<Reply> Connections::Call(const Words& words) {
  WEFT_ASSIGN_OR_RETURN(Context context, Borrow());
  auto reply = CallOn(*context, words);
  Return(std::move(context));
  return reply;
}

absl::StatusOr<Context> Connections::Listen(const Words& channels) {
  WEFT_ASSIGN_OR_RETURN(Context context, Dial(options_.call_timeout));
  Words words = {"SUBSCRIBE"};
  words.insert(words.end(), channels.begin(), channels.end());
  WEFT_RETURN_IF_ERROR(CallOn(*context, words).status());
  for (size_t i = 1; i < channels.size(); ++i) {
    WEFT_RETURN_IF_ERROR(Hear(*context, clock_.Now() + options_.call_timeout));
  }
  return context;
}

absl::Status Connections::Hear(redisContext& context, absl::Time deadline) const {
  absl::Duration left = deadline - clock_.Now();
  if (left <= absl::ZeroDuration()) return absl::DeadlineExceededError("");
  redisSetTimeout(&context, TimevalOf(left));
  void* raw = nullptr;
  int result = redisGetReply(&context, &raw);
  Reply reply(static_cast<redisReply*>(raw));
  if (result == REDIS_OK) return absl::OkStatus();
  if (context.err == REDIS_ERR_IO && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    return absl::DeadlineExceededError("");
  }
  return Gone(context.errstr);
}

}  // namespace weft::collectives::redis
