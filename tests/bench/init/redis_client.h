// A Client of a Redis server, in as few messages as Redis allows: waiting is a blocking read of a
// stream that the last one to come writes to, and all commands of an operation go in one write. A
// barrier is a script that counts, and that read; an all-gather a script that appends to a list,
// that read, and the list in as few pieces as keep Redis' own output buffers below a gigabyte. (Our
// RedisStore, which has to name who is missing, uses subscriptions and about twice the messages.)
//
// hiredis parses; answers of an all-gather are compared as they are parsed, and not kept.
#ifndef WEFT_TESTS_BENCH_INIT_REDIS_CLIENT_H_
#define WEFT_TESTS_BENCH_INIT_REDIS_CLIENT_H_

#include <hiredis/read.h>

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "tests/bench/init/stream_client.h"

namespace weft::init {

class RedisClient final : public StreamClient {
 public:
  explicit RedisClient(const ClientSetup& setup);

  void Set(const std::string& key, const std::string& value, Done done) override;
  void Get(const std::string& key, Done done) override;  // kNotFound: it does not wait
  void Add(const std::string& key, int64_t amount, Done done) override;
  void Wait(const std::string& key, Done done) override;  // kUnimplemented
  void Barrier(const std::string& key, int rank, int size, Done done) override;
  void AllGather(const std::string& key, int rank, int size, Done done) override;

 protected:
  void Greet() override;
  absl::Status Consume(absl::string_view bytes) override;
  void Abandon(const absl::Status& why) override;

 private:
  using Words = std::vector<std::string>;
  enum class Use { kIgnore, kAnswer, kMeeting, kList };
  struct Pending {
    Use use = Use::kAnswer;
    Done done;  // null: others of the same operation follow
  };
  // What the parser says of the answer that it is in.
  struct Parsed {
    std::string error;
    bool nil = false;
    int64_t number = 0;
  };
  struct ReaderDeleter {
    void operator()(redisReader* reader) const { redisReaderFree(reader); }
  };

  void Ask(const Words& words, Pending pending);
  void Enter(const char* script, const std::string& key, int size, const std::string& value);
  void Fetch(const std::string& key, int first, int size, const Done& done);
  absl::Status StatusOf(const Pending& pending) const;
  void TakeValue(absl::string_view value);
  static redisReplyObjectFunctions* Functions();

  std::unique_ptr<redisReader, ReaderDeleter> reader_;
  std::deque<Pending> pending_;
  Parsed parsed_;
  int right_ = 0;  // values of an all-gather
};

}  // namespace weft::init

#endif  // WEFT_TESTS_BENCH_INIT_REDIS_CLIENT_H_
