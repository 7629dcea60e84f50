// One epoll for many descriptors, in one thread: what the store's server, relays and clients
// without threads of their own run in. Each descriptor has a Handler, which is called when it is
// ready. A handler that goes within a turn is destroyed at its end: events of this turn may still
// name it.
#ifndef WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_REACTOR_H_
#define WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_REACTOR_H_

#include <sys/epoll.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/file_descriptor.h"

namespace weft::collectives {

class StoreReactor {
 public:
  class Handler {
   public:
    virtual ~Handler() = default;
    virtual void Ready(uint32_t events) = 0;  // EPOLLIN, ...
  };

  absl::Status Open();

  void Add(int fd, Handler* handler, uint32_t events);
  void Change(int fd, Handler* handler, uint32_t events);
  // Before `fd` is closed: an epoll goes on watching a closed descriptor of which a forked process
  // holds a copy, and would call a handler that is gone. Does nothing in a forked process: the
  // epoll is its parent's.
  void Remove(int fd);
  void DeferDelete(std::unique_ptr<Handler> handler) {
    deferred_deletes_.push_back(std::move(handler));
  }

  // Sleeps until something is ready or `until`, and calls the handlers.
  void Turn(absl::Time until);
  int64_t turns() const { return turns_; }
  absl::Time now() const { return now_; }  // of this turn
  void Tick() { now_ = clock_.Now(); }

  // A buffer for reading that all handlers of a reactor share.
  std::vector<char>& buffer() { return buffer_; }

 private:
  SystemClock clock_;
  absl::Time now_ = clock_.Now();
  FileDescriptor epoll_;
  pid_t owner_ = -1;
  int64_t turns_ = 0;
  std::vector<epoll_event> events_;
  std::vector<std::unique_ptr<Handler>> deferred_deletes_;
  std::vector<char> buffer_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_STORE_PROTOCOL_STORE_REACTOR_H_
