// One simulated rank's way to a store, without a thread or a process of its own: a real connection
// in a poller: our own store's (weft_client.h), or a peer's (tests/bench/init), each spoken to in
// its own protocol and in the way that suits it best, so that what differs between them is the
// store.
//
// Not thread-safe; the poller's thread calls everything, and `Done` functions, too.
#ifndef WEFT_TOOLS_INIT_CLIENT_H_
#define WEFT_TOOLS_INIT_CLIENT_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/poller.h"
#include "base/socket_address.h"
#include "collectives/store/rank_set.h"
#include "collectives/store/relay/store_link.h"
#include "net/transport.h"

namespace weft::init {

// What an all-gather is to bring: each rank's value with its length, in order.
class Expected {
 public:
  void Add(absl::string_view value);
  const std::string& bytes() const { return bytes_; }
  int ranks() const { return static_cast<int>(offsets_.size()); }
  absl::string_view value(int rank) const;

 private:
  std::string bytes_;
  std::vector<size_t> offsets_;
};

class Client {
 public:
  // `number`: what an addition came to; else 0.
  using Done = std::function<void(const absl::Status&, int64_t number)>;

  virtual ~Client() = default;
  // Dials; `connected` is called once, when the server has answered its greeting, or with an error.
  virtual void Start(std::function<void(const absl::Status&)> connected) = 0;
  // Whether requests may be made before Start(), to go with the greeting.
  virtual bool eager() const { return false; }

  virtual void Set(const std::string& key, const std::string& value, Done done) = 0;
  // Where the protocol has sets without an answer, one of these.
  virtual void Post(const std::string& key, const std::string& value) {
    Set(key, value, [](const absl::Status&, int64_t) {});
  }
  virtual void Get(const std::string& key, Done done) = 0;  // waits until it is there
  // For a key that is known to be there.
  virtual void GetPresent(const std::string& key, Done done) { Get(key, std::move(done)); }
  virtual void Add(const std::string& key, int64_t amount, Done done) = 0;
  virtual void Wait(const std::string& key, Done done) = 0;
  virtual void Barrier(const std::string& key, int rank, int size, Done done) = 0;
  // kDataLoss: other bytes came than Expected ones.
  virtual void AllGather(const std::string& key, int rank, int size, Done done) = 0;
  // The same with the values of `wanted` alone; our own store's.
  virtual void Exchange(const std::string& key, int rank, int size,
                        const collectives::RankSet& wanted, Done done) = 0;

  // Redials where that is due.
  virtual void Advance(absl::Time /*now*/) {}

  // Requests and answers on the wire; a greeting's too.
  virtual int64_t sent() const = 0;
  virtual int64_t received() const = 0;
};

struct ClientSetup {
  Poller* poller = nullptr;
  collectives::StoreLinkOptions link;   // of our own store's clients
  SocketAddress server;                 // for the others
  std::optional<SocketAddress> source;  // likewise
  absl::Duration timeout;               // of what waits
  const Expected* expected = nullptr;
  // Our own store's clients say who they are.
  net::JobSecret secret{};
  int rank = 0;
  std::string host;
  int generation = 0;
  bool local = false;       // the store is this host's relay
  bool checks_file = true;  // where the exchange lies in a file that a host's ranks share
};

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_CLIENT_H_
