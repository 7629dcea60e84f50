// A store that a measurement runs against: how its server starts, and how a rank speaks to it. Ours
// is here; Redis and torch's TCPStore, as peers, are in tests/bench/init.
#ifndef WEFT_TOOLS_INIT_MEASURED_STORE_H_
#define WEFT_TOOLS_INIT_MEASURED_STORE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "net/transport.h"
#include "tools/init/client.h"

namespace weft::init {

// System calls by a server so far; negative: nobody can say.
struct ServerCalls {
  double reads = -1;
  double writes = -1;
  double waits = -1;  // epoll_wait
};

// A server that runs. The destructor ends it, where the measurement started it.
class StoreProcess {
 public:
  virtual ~StoreProcess() = default;

  virtual const std::string& address() const = 0;  // "127.0.0.1:6379"
  // The server's CPU time so far; negative: nobody can say.
  virtual double cpu_seconds() const = 0;
  virtual ServerCalls calls() const { return {}; }
  virtual int64_t bytes_sent() const { return -1; }
  // Requests that wait; ours only, else 0.
  virtual int64_t waiting() const { return 0; }
  // What a reader of the figures should know of it; empty: nothing.
  virtual std::string note() const { return {}; }
};

// Requests and answers on the wire.
struct RequestMessages {
  int64_t set = 2;
  int64_t get = 2;
};

// Immutable; may be used by several processes.
class MeasuredStore {
 public:
  virtual ~MeasuredStore() = default;
  virtual const char* name() const = 0;  // "weft"
  // Whether ranks can ask for single ranks' records, come through relays, and be replaced.
  virtual bool has_exchanges() const { return false; }
  virtual RequestMessages messages() const { return {}; }
  // For so many ranks. kNotFound: there is no such program or module; the message says which, and
  // what to do.
  virtual absl::StatusOr<std::unique_ptr<StoreProcess>> Start(
      int ranks, const net::JobSecret& secret) const = 0;
  virtual std::unique_ptr<Client> MakeClient(const ClientSetup& setup) const = 0;
};

// Its server is a thread of this process.
const MeasuredStore& WeftStore();

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_MEASURED_STORE_H_
