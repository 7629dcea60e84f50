#include "tests/bench/init/redis_client.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::init {
namespace {

// KEYS: the counter or list, the stream; ARGV: how many come, the value.
constexpr const char* kCount =
    "local n=redis.call('INCR',KEYS[1]) if n==tonumber(ARGV[1]) then "
    "redis.call('XADD',KEYS[2],'*','d','1') end return n";
constexpr const char* kPush =
    "local n=redis.call('RPUSH',KEYS[1],ARGV[2]) if n==tonumber(ARGV[1]) then "
    "redis.call('XADD',KEYS[2],'*','d','1') end return n";
// What Redis may hold in output buffers when all ranks ask at once.
constexpr size_t kOutputBytes = size_t{1} << 30;
constexpr int kValuesAtLeast = 64;

std::string Encode(const std::vector<std::string>& words) {
  std::string out = absl::StrCat("*", words.size(), "\r\n");
  for (const std::string& word : words) {
    absl::StrAppend(&out, "$", word.size(), "\r\n", word, "\r\n");
  }
  return out;
}

}  // namespace

redisReplyObjectFunctions* RedisClient::Functions() {
  static redisReplyObjectFunctions functions = {
      [](const redisReadTask* task, char* text, size_t size) -> void* {
        auto* self = static_cast<RedisClient*>(task->privdata);
        if (task->type == REDIS_REPLY_ERROR) self->parsed_.error.assign(text, size);
        if (task->type == REDIS_REPLY_STRING && task->parent != nullptr) {
          self->TakeValue({text, size});
        }
        return self;
      },
      [](const redisReadTask* task, int) -> void* { return task->privdata; },
      [](const redisReadTask* task, long long number) -> void* {
        auto* self = static_cast<RedisClient*>(task->privdata);
        if (task->parent == nullptr) self->parsed_.number = number;
        return self;
      },
      [](const redisReadTask* task) -> void* {
        auto* self = static_cast<RedisClient*>(task->privdata);
        if (task->parent == nullptr) self->parsed_.nil = true;
        return self;
      },
      [](void*) {},
  };
  return &functions;
}

RedisClient::RedisClient(const ClientSetup& setup)
    : StreamClient(setup), reader_(redisReaderCreateWithFunctions(Functions())) {
  reader_->privdata = this;
}

void RedisClient::Greet() {
  Ask({"PING"}, {Use::kAnswer, [this](const absl::Status&, int64_t) { Connected(); }});
}

void RedisClient::Ask(const Words& words, Pending pending) {
  ++sent_;
  pending_.push_back(std::move(pending));
  Write(Encode(words));
}

void RedisClient::Set(const std::string& key, const std::string& value, Done done) {
  Ask({"SET", key, value}, {Use::kAnswer, std::move(done)});
}

void RedisClient::Get(const std::string& key, Done done) {
  Ask({"GET", key}, {Use::kAnswer, std::move(done)});
}

void RedisClient::Add(const std::string& key, int64_t amount, Done done) {
  Ask({"INCRBY", key, absl::StrCat(amount)}, {Use::kAnswer, std::move(done)});
}

void RedisClient::Wait(const std::string& key, Done done) {
  done(absl::UnimplementedError(absl::StrCat("no wait for '", key, "' on Redis")), 0);
}

void RedisClient::Enter(const char* script, const std::string& key, int size,
                        const std::string& value) {
  std::string done = absl::StrCat(key, ":done");
  Ask({"EVAL", script, "2", key, done, absl::StrCat(size), value}, {Use::kIgnore, nullptr});
}

void RedisClient::Barrier(const std::string& key, int /*rank*/, int size, Done done) {
  Enter(kCount, key, size, "");
  Ask({"XREAD", "BLOCK", absl::StrCat(absl::ToInt64Milliseconds(setup().timeout)), "STREAMS",
       absl::StrCat(key, ":done"), "0"},
      {Use::kMeeting, std::move(done)});
}

// A value goes with its rank before it: the list is in the order of arrival.
void RedisClient::AllGather(const std::string& key, int rank, int size, Done done) {
  std::string value(sizeof(int32_t), '\0');
  std::memcpy(value.data(), &rank, sizeof(int32_t));
  absl::string_view own = setup().expected->value(rank);
  value.append(own.data(), own.size());
  right_ = 0;
  Enter(kPush, key, size, value);
  Ask({"XREAD", "BLOCK", absl::StrCat(absl::ToInt64Milliseconds(setup().timeout)), "STREAMS",
       absl::StrCat(key, ":done"), "0"},
      {Use::kMeeting, nullptr});
  Fetch(key, 0, size, done);
}

void RedisClient::Fetch(const std::string& key, int first, int size, const Done& done) {
  size_t all = std::max<size_t>(1, setup().expected->bytes().size());
  auto pieces = static_cast<int>(all * static_cast<size_t>(size) / kOutputBytes + 1);
  int end = std::min(size, first + std::max(kValuesAtLeast, (size + pieces - 1) / pieces));
  auto got = [=, this](const absl::Status& status, int64_t) {
    if (!status.ok()) return done(status, 0);
    if (end < size) return Fetch(key, end, size, done);
    bool right = right_ == size;
    done(right ? absl::OkStatus()
               : absl::DataLossError("the exchange brought other bytes than were sent"),
         0);
  };
  Ask({"LRANGE", key, absl::StrCat(first), absl::StrCat(end - 1)}, {Use::kList, got});
}

void RedisClient::TakeValue(absl::string_view value) {
  if (pending_.empty() || pending_.front().use != Use::kList || value.size() < sizeof(int32_t)) {
    return;
  }
  int32_t rank = 0;
  std::memcpy(&rank, value.data(), sizeof(rank));
  const Expected& expected = *setup().expected;
  if (rank < 0 || rank >= expected.ranks()) return;
  if (value.substr(sizeof(rank)) == expected.value(rank)) ++right_;
}

absl::Status RedisClient::StatusOf(const Pending& pending) const {
  if (!parsed_.error.empty()) {
    return absl::UnknownError(absl::StrCat("Redis: ", parsed_.error));
  }
  if (!parsed_.nil) return absl::OkStatus();
  if (pending.use == Use::kMeeting) {
    return absl::DeadlineExceededError(
        absl::StrCat("ranks are missing after ", absl::FormatDuration(setup().timeout)));
  }
  return absl::NotFoundError("Redis: no such key");
}

absl::Status RedisClient::Consume(absl::string_view bytes) {
  redisReaderFeed(reader_.get(), bytes.data(), bytes.size());
  while (true) {
    void* reply = nullptr;
    if (redisReaderGetReply(reader_.get(), &reply) != REDIS_OK) {
      return absl::InvalidArgumentError(
          absl::StrCat("the server does not speak as Redis does: ", reader_->errstr));
    }
    if (reply == nullptr) return absl::OkStatus();
    if (pending_.empty()) return absl::InvalidArgumentError("Redis answers what nobody asked");
    Pending pending = std::move(pending_.front());
    pending_.pop_front();
    absl::Status status = StatusOf(pending);
    int64_t number = parsed_.number;
    parsed_ = {};
    ++received_;
    if (pending.done) {
      pending.done(status, number);
    } else if (!status.ok()) {
      return status;  // fails the operation that it is a part of
    }
  }
}

void RedisClient::Abandon(const absl::Status& why) {
  for (Pending& pending : std::exchange(pending_, {})) {
    if (pending.done) pending.done(why, 0);
  }
}

}  // namespace weft::init
