// Serves a StoreCore on a TCP port, in a thread of its own: epoll, and all answers of one turn in
// one writev a connection. Thread-safe.
//
// A process whose store is gone takes its job with it, so a server lives as long as its launcher;
// with `state_dir`, one that is started again in the same place goes on where it was killed.
#ifndef WEFT_COLLECTIVES_STORE_SERVER_STORE_SERVER_H_
#define WEFT_COLLECTIVES_STORE_SERVER_STORE_SERVER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/store/server/store_core.h"

namespace weft::collectives {

struct StoreServerOptions {
  // "127.0.0.1:0" (0: the kernel picks), "[::1]:29500", "host:29500", ":29500" (every address, of
  // both families), "unix:NAME" (this user's processes of this host).
  std::string listen = "127.0.0.1:0";
  // Without a secret, the server listens on loopback only, unless this is set.
  bool open_to_unauthenticated = false;
  int64_t connections_max = 65536;  // as StoreService's `limit`
  // A client's host from which nothing comes for so long counts as gone; whole seconds, at least 3.
  absl::Duration silence = absl::Seconds(20);
  // A folder for the journal; empty: none. Survives the death of the process, not that of the host.
  std::string state_dir;
  StoreCoreOptions core;
};

struct StoreServerStatistics {
  int64_t connections = 0;
  int64_t sessions = 0;
  int64_t keys = 0;
  int64_t waiting = 0;  // requests
  Bytes memory;
  int64_t accepted = 0;  // connections since the start
  int64_t refused = 0;   // closed by the server with a reason
  std::string last_refusal;
  int64_t requests = 0;  // since the start
  // Calls of the kernel since then: receives, sends, waits for something to do.
  int64_t reads = 0;
  int64_t writes = 0;
  int64_t waits = 0;
  Bytes bytes_sent;    // or on their way out; whoever has an answer finds its bytes counted
  absl::Duration cpu;  // of the server's thread
};

class StoreServer {
 public:
  // kInvalidArgument: `listen` makes no sense, or would be open to unauthenticated clients;
  // kAlreadyExists: the port, or the state's folder, is taken.
  static absl::StatusOr<std::unique_ptr<StoreServer>> Start(StoreServerOptions options);
  virtual ~StoreServer() = default;  // stops; clients find the store gone

  virtual const std::string& address() const = 0;  // "127.0.0.1:29500", the real port
  virtual int port() const = 0;
  // As of the last turn; whoever has the answer to a request finds that request counted.
  virtual StoreServerStatistics statistics() const = 0;
  // Until no client is connected, at most `timeout`: for a server in a process that takes part in
  // the job itself.
  virtual void Drain(absl::Duration timeout) = 0;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_SERVER_STORE_SERVER_H_
