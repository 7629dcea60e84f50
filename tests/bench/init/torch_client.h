// A Client of torch's TCPStore, as torch's own client speaks to it: one request at a time, `get` as
// wait and get, a barrier as add, add, wait (torch's _store_based_barrier), an all-gather as set
// and then wait and multi-get of 128 keys at a time (what Gloo does with its second store
// interface).
//
// The protocol, little endian and without framing: a byte that says what, then u64 lengths before
// texts. 0 validate{u32 0x3c85f7ce}, unanswered, comes first; 13 ping{u32} -> the same u32; 1
// set{key, value}, unanswered; 3 get{key} -> value; 4 add{key, i64} -> i64; 6 wait{u64 n, keys} ->
// a byte 0 once all are there; 10 multi-get{u64 n, keys} -> n values. Keys of users begin with '/'.
#ifndef WEFT_TESTS_BENCH_INIT_TORCH_CLIENT_H_
#define WEFT_TESTS_BENCH_INIT_TORCH_CLIENT_H_

#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "tests/bench/init/stream_client.h"

namespace weft::init {

class TorchClient final : public StreamClient {
 public:
  explicit TorchClient(const ClientSetup& setup) : StreamClient(setup) {}

  // No answer exists: `done` comes with that of a ping behind it.
  void Set(const std::string& key, const std::string& value, Done done) override;
  void Get(const std::string& key, Done done) override;
  void GetPresent(const std::string& key, Done done) override;  // without the wait before it
  void Add(const std::string& key, int64_t amount, Done done) override;
  void Wait(const std::string& key, Done done) override;
  void Barrier(const std::string& key, int rank, int size, Done done) override;
  void AllGather(const std::string& key, int rank, int size, Done done) override;
  void Post(const std::string& key, const std::string& value) override;  // as torch's own set

 protected:
  void Greet() override;
  absl::Status Consume(absl::string_view bytes) override;
  void Abandon(const absl::Status& why) override;

 private:
  // What the next answer looks like.
  enum class Answer { kPing, kNumber, kByte, kValues };
  struct Pending {
    Answer answer;
    size_t values = 0;  // kValues
    int first = -1;     // of an all-gather: the first value's rank
    Done done;
  };
  void Ask(const std::string& request, Pending pending);
  void GatherFrom(const std::string& key, int first, int size, const Done& done);
  // Takes a whole answer off `in_`; 0: it is not whole yet.
  absl::StatusOr<size_t> Take(const Pending& pending, absl::string_view bytes, int64_t* number);

  std::deque<Pending> pending_;
  std::string in_;
};

}  // namespace weft::init

#endif  // WEFT_TESTS_BENCH_INIT_TORCH_CLIENT_H_
