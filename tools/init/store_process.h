// The server that weft-init measures: ours in a thread of this process, a Redis or a TCPStore in a
// process of its own, which is started and ended here, or one that runs already.
#ifndef WEFT_TOOLS_INIT_STORE_PROCESS_H_
#define WEFT_TOOLS_INIT_STORE_PROCESS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "net/transport.h"
#include "tools/init/options.h"

namespace weft::init {

// Of the kernel, by a server so far; negative: nobody can say.
struct ServerCalls {
  double reads = -1;
  double writes = -1;
  double waits = -1;  // epoll_wait
};

class StoreProcess {
 public:
  // kNotFound: there is no such program or module; the message says which, and what to do.
  static absl::StatusOr<std::unique_ptr<StoreProcess>> Start(const Options& options,
                                                             const net::JobSecret& secret);
  virtual ~StoreProcess() = default;  // ends what was started

  virtual const std::string& address() const = 0;  // "127.0.0.1:6379"
  // Of the server so far; negative: nobody can say.
  virtual double cpu_seconds() const = 0;
  virtual ServerCalls calls() const { return {}; }
  virtual int64_t bytes_sent() const { return -1; }
  // Requests that wait; ours only, else 0.
  virtual int64_t waiting() const { return 0; }
  // What a reader of the figures should know of it; empty: nothing.
  virtual std::string note() const { return {}; }
};

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_STORE_PROCESS_H_
