// The stores that ours is measured beside: a Redis server and torch's TCPStore, each a real server,
// in a process that is started here or one that runs already.
#ifndef WEFT_TESTS_BENCH_INIT_PEER_STORE_H_
#define WEFT_TESTS_BENCH_INIT_PEER_STORE_H_

#include <memory>
#include <string>

#include "tests/bench/init/child.h"
#include "tools/init/measured_store.h"

namespace weft::init {

// Where a peer's server is.
struct PeerServer {
  std::string address;  // HOST:PORT of one that runs already; empty: one is started
  std::string program;  // that starts one: Redis', or a Python with PyTorch 2
};

std::unique_ptr<MeasuredStore> RedisStore(const PeerServer& server);
std::unique_ptr<MeasuredStore> TorchStore(const PeerServer& server);

// One that runs already.
class RunningServer : public StoreProcess {
 public:
  explicit RunningServer(std::string address) : address_(std::move(address)) {}
  const std::string& address() const override { return address_; }
  double cpu_seconds() const override { return -1; }
  std::string note() const override;

 private:
  const std::string address_;
};

// One that was started, at a port of 127.0.0.1.
class StartedServer : public StoreProcess {
 public:
  StartedServer(std::unique_ptr<Child> child, int port, std::string note);
  const std::string& address() const override { return address_; }
  double cpu_seconds() const override;
  std::string note() const override { return note_; }

 private:
  std::unique_ptr<Child> child_;
  const std::string address_;
  const std::string note_;
  const double before_;  // starting is not serving
};

}  // namespace weft::init

#endif  // WEFT_TESTS_BENCH_INIT_PEER_STORE_H_
