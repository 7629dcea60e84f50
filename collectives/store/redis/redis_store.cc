#include "collectives/store/redis/redis_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/socket_address.h"
#include "base/status.h"
#include "collectives/store/protocol/store_protocol.h"
#include "collectives/store/redis/redis_connection.h"
#include "collectives/store/redis/redis_scripts.h"

namespace weft::collectives {
namespace {

using redis::Context;
using redis::ListOf;
using redis::Reply;
using redis::TextOf;
using redis::Words;

constexpr int kGroupKeptSeconds = 600;  // a group's values, once it is complete
constexpr size_t kNamed = 8;

// Whether all values that were asked for are there.
bool IsWhole(const redisReply& reply) {
  for (size_t i = 0; i < reply.elements; ++i) {
    if (reply.element[i]->type != REDIS_REPLY_STRING) return false;
  }
  return true;
}

class Redis final : public Store {
 public:
  explicit Redis(RedisStoreOptions options) : connections_(std::move(options)) {
    std::string prefix = absl::StrCat("weft:{", connections_.options().job, "}:");
    for (const char* name : {"values", "versions", "counter", "channel:", "served"}) {
      keys_.push_back(absl::StrCat(prefix, name));
    }
    group_prefix_ = absl::StrCat(prefix, "group:");
  }

  absl::Status Begin() { return connections_.Begin(); }

  absl::Status Set(absl::string_view key, absl::string_view value) override {
    return Script(redis::kSet, key, {std::string(key), std::string(value)}).status();
  }

  absl::StatusOr<std::string> Get(absl::string_view key, absl::Duration timeout) override {
    WEFT_ASSIGN_OR_RETURN(Words values, MultiGet({std::string(key)}, timeout));
    return std::move(values[0]);
  }

  absl::StatusOr<int64_t> Add(absl::string_view key, int64_t amount) override {
    WEFT_ASSIGN_OR_RETURN(Reply reply,
                          Script(redis::kAdd, key, {std::string(key), absl::StrCat(amount)}));
    int64_t sum = 0;
    if (absl::SimpleAtoi(TextOf(*reply), &sum)) return sum;
    return absl::InternalError(absl::StrCat("'", key, "': Redis added to ", TextOf(*reply)));
  }

  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    WEFT_ASSIGN_OR_RETURN(Reply reply,
                          Script(redis::kCompareSet, key,
                                 {std::string(key), std::string(expected), std::string(desired)}));
    return TextOf(*reply);
  }

  absl::StatusOr<bool> Delete(absl::string_view key) override {
    WEFT_ASSIGN_OR_RETURN(Reply reply, Script(redis::kDelete, key, {std::string(key)}));
    return reply->integer == 1;
  }

  absl::StatusOr<int64_t> KeyCount() override {
    WEFT_ASSIGN_OR_RETURN(Reply reply, connections_.Call({"HLEN", keys_[0]}));
    return reply->integer;
  }

  absl::StatusOr<bool> Check(const std::vector<std::string>& keys) override {
    WEFT_ASSIGN_OR_RETURN(Words missing, Missing(keys));
    return missing.empty();
  }

  absl::Status Wait(const std::vector<std::string>& keys, absl::Duration timeout) override {
    if (keys.empty()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(Words missing, Missing(keys));
    if (missing.empty()) return absl::OkStatus();
    absl::Time deadline = clock_.Now() + timeout;
    WEFT_ASSIGN_OR_RETURN(Context ears, Listen(missing));
    while (true) {
      WEFT_ASSIGN_OR_RETURN(missing, Missing(keys));
      if (missing.empty()) return absl::OkStatus();
      absl::Status heard = connections_.Hear(*ears, deadline);
      if (heard.ok()) continue;
      if (!absl::IsDeadlineExceeded(heard)) return heard;
      size_t more = missing.size() - std::min(missing.size(), kNamed);
      missing.resize(missing.size() - more);
      return absl::DeadlineExceededError(
          absl::StrCat("not set after ", absl::FormatDuration(timeout), ": '",
                       absl::StrJoin(missing, "', '"), "'", more > 0 ? ", ..." : ""));
    }
  }

  absl::Status Append(absl::string_view key, absl::string_view value) override {
    return Script(redis::kAppend, key,
                  {std::string(key), std::string(value), absl::StrCat(kStoreValueBytesMax)})
        .status();
  }

  absl::StatusOr<std::vector<std::string>> MultiGet(const std::vector<std::string>& keys,
                                                    absl::Duration timeout) override {
    if (keys.empty()) return Words();
    absl::Time deadline = clock_.Now() + timeout;
    while (true) {
      WEFT_RETURN_IF_ERROR(Wait(keys, deadline - clock_.Now()));
      Words words = {"HMGET", keys_[0]};
      words.insert(words.end(), keys.begin(), keys.end());
      WEFT_ASSIGN_OR_RETURN(Reply reply, connections_.Call(words));
      if (IsWhole(*reply)) return ListOf(*reply);  // unless one was deleted in between
    }
  }

  absl::Status MultiSet(const std::vector<std::string>& keys,
                        const std::vector<std::string>& values) override {
    if (keys.size() != values.size()) {
      return absl::InvalidArgumentError(
          absl::StrCat("multi-set of ", keys.size(), " keys and ", values.size(), " values"));
    }
    if (keys.empty()) return absl::OkStatus();
    Words words;
    for (size_t i = 0; i < keys.size(); ++i) {
      words.push_back(keys[i]);
      words.push_back(values[i]);
    }
    return Script(redis::kSet, keys[0], std::move(words)).status();
  }

  absl::Status Barrier(absl::string_view key, int rank, int size, absl::Duration timeout) override {
    return Meet("barrier", key, rank, size, -1, "", timeout).status();
  }

  absl::StatusOr<std::vector<std::string>> AllGather(absl::string_view key, int rank, int size,
                                                     absl::string_view value,
                                                     absl::Duration timeout) override {
    return Meet("all-gather", key, rank, size, -1, value, timeout);
  }

  absl::StatusOr<std::vector<std::string>> Gather(absl::string_view key, int rank, int size,
                                                  int root, absl::string_view value,
                                                  absl::Duration timeout) override {
    if (root < 0 || root >= size) {
      return absl::InvalidArgumentError(
          absl::StrCat("gather '", key, "': root ", root, " of ", size, " does not exist"));
    }
    return Meet("gather", key, rank, size, root, value, timeout);
  }

  absl::StatusOr<StoreWatched> Watch(absl::string_view key, int64_t known,
                                     absl::Duration timeout) override {
    absl::Time deadline = clock_.Now() + timeout;
    std::string name(key);
    WEFT_ASSIGN_OR_RETURN(Context ears, Listen({name}));
    while (true) {
      WEFT_ASSIGN_OR_RETURN(Reply reply, Run("return {redis.call('HGET', KEYS[2], ARGV[1]), "
                                             "redis.call('HGET', KEYS[1], ARGV[1])}",
                                             {name}));
      StoreWatched now;
      // A missing first element ends a Lua table.
      if (reply->elements == 2 && reply->element[0]->type == REDIS_REPLY_STRING &&
          absl::SimpleAtoi(TextOf(*reply->element[0]), &now.version)) {
        now.value = TextOf(*reply->element[1]);
      }
      if (now.version != known) return now;
      absl::Status heard = connections_.Hear(*ears, deadline);
      if (absl::IsDeadlineExceeded(heard)) {
        return absl::DeadlineExceededError(
            absl::StrCat("watch '", key, "': no change after ", absl::FormatDuration(timeout)));
      }
      WEFT_RETURN_IF_ERROR(heard);
    }
  }

 private:
  absl::StatusOr<Reply> Run(absl::string_view script, Words arguments) {
    Words words = {"EVAL", absl::StrCat(redis::kTouch, script), absl::StrCat(keys_.size())};
    words.insert(words.end(), keys_.begin(), keys_.end());
    std::move(arguments.begin(), arguments.end(), std::back_inserter(words));
    return connections_.Call(words);
  }

  // A change of `key`; errors in our terms.
  absl::StatusOr<Reply> Script(absl::string_view script, absl::string_view key, Words arguments) {
    for (const std::string& word : arguments) {
      if (word.size() > kStoreValueBytesMax) {
        return absl::InvalidArgumentError(absl::StrCat("'", key, "': a value of ", word.size(),
                                                       " bytes; at most ", kStoreValueBytesMax,
                                                       " are allowed"));
      }
    }
    if (key.size() > kStoreKeyBytesMax) {
      return absl::InvalidArgumentError(absl::StrCat("a key of ", key.size(), " bytes; at most ",
                                                     kStoreKeyBytesMax, " are allowed"));
    }
    auto reply = Run(script, std::move(arguments));
    if (reply.ok()) return reply;
    absl::string_view error = reply.status().message();
    if (absl::StrContains(error, "not an integer")) {
      return absl::FailedPreconditionError(
          absl::StrCat("'", key, "' holds no decimal number, so nothing can be added to it"));
    }
    if (absl::StrContains(error, "overflow")) {
      return absl::OutOfRangeError(absl::StrCat("'", key, "': the sum does not fit into 64 bits"));
    }
    if (absl::StrContains(error, "TOOLONG")) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", key, "' would grow over ", kStoreValueBytesMax, " bytes"));
    }
    return reply;
  }

  absl::StatusOr<Words> Missing(const Words& keys) {
    WEFT_ASSIGN_OR_RETURN(Reply reply, Run(redis::kMissing, keys));
    return ListOf(*reply);
  }

  // ---- Waiting: a connection that has subscribed before anything is looked at

  absl::StatusOr<Context> Listen(const Words& keys) {
    Words channels;
    for (const std::string& key : keys) channels.push_back(keys_[3] + key);
    return connections_.Listen(channels);
  }

  // ---- Barriers and gathers

  absl::StatusOr<Words> Meet(absl::string_view op, absl::string_view key, int rank, int size,
                             int root, absl::string_view value, absl::Duration timeout) {
    std::string what = absl::StrCat(op, " '", key, "'");
    if (size < 1 || rank < 0 || rank >= size) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, ": rank ", rank, " of ", size, " does not exist"));
    }
    absl::Time deadline = clock_.Now() + timeout;
    std::string group = absl::StrCat(group_prefix_, key);
    bool waits = root < 0 || root == rank;
    Context ears;
    if (waits) {
      WEFT_ASSIGN_OR_RETURN(ears, Listen({group}));
    }
    auto entered = Run(redis::kEnter, {group, std::string(key), absl::StrCat(op, " ", root, " of "),
                                       absl::StrCat(size), absl::StrCat(rank), std::string(value),
                                       absl::StrCat(kGroupKeptSeconds)});
    if (!entered.ok()) return NotEntered(entered.status(), what, rank, size);
    bool complete = (*entered)->integer == 1;
    while (waits && !complete) {
      absl::Status heard = connections_.Hear(*ears, deadline);
      if (absl::IsDeadlineExceeded(heard)) {
        WEFT_ASSIGN_OR_RETURN(Reply here,
                              Run(redis::kLeave, {group, std::string(key), absl::StrCat(rank)}));
        Words names = ListOf(*here);
        if (names != Words{"1"}) return Late(what, size, names, timeout);
      } else {
        WEFT_RETURN_IF_ERROR(heard);
      }
      complete = true;
    }
    if (op == "barrier" || !waits) return Words();
    Words words = {"HMGET", group};
    for (int i = 0; i < size; ++i) words.push_back(absl::StrCat("r", i));
    WEFT_ASSIGN_OR_RETURN(Reply reply, connections_.Call(words));
    if (!IsWhole(*reply)) {
      return absl::DataLossError(absl::StrCat(what, ": rank ", rank, " comes for the values when ",
                                              kGroupKeptSeconds,
                                              " s have passed, and they are gone"));
    }
    return ListOf(*reply);
  }

  static absl::Status NotEntered(const absl::Status& status, absl::string_view what, int rank,
                                 int size) {
    absl::string_view error = status.message();
    if (absl::StrContains(error, "SERVED")) {
      return absl::FailedPreconditionError(
          absl::StrCat(what, ": this key has served; each serves once"));
    }
    if (absl::StrContains(error, "TWICE")) {
      return absl::AlreadyExistsError(absl::StrCat(what, ": rank ", rank, " has come already"));
    }
    if (absl::StrContains(error, "MISMATCH")) {
      return absl::InvalidArgumentError(absl::StrCat(what, ": rank ", rank, " comes with ", size,
                                                     " ranks, others differ: ", error));
    }
    return status;
  }

  static absl::Status Late(absl::string_view what, int size, const Words& here,
                           absl::Duration timeout) {
    Words missing;
    size_t count = 0;
    for (int i = 0; i < size; ++i) {
      if (std::find(here.begin(), here.end(), absl::StrCat("r", i)) != here.end()) continue;
      if (++count <= kNamed) missing.push_back(absl::StrCat(i));
    }
    return absl::DeadlineExceededError(absl::StrCat(
        what, ": ", count, " of ", size, " ranks missing after ", absl::FormatDuration(timeout),
        ": ", absl::StrJoin(missing, ", "), count > kNamed ? ", ..." : ""));
  }

  redis::Connections connections_;
  Words keys_;
  std::string group_prefix_;
  SystemClock clock_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Store>> ConnectRedisStore(RedisStoreOptions options) {
  WEFT_RETURN_IF_ERROR(SplitHostPort(options.address).status());
  auto store = std::make_unique<Redis>(std::move(options));
  WEFT_RETURN_IF_ERROR(store->Begin());
  return store;
}

}  // namespace weft::collectives
