// An epoll descriptor with an owner. What becomes ready is told by the data that was given with its
// descriptor. Add, Change and Remove by any thread, also while one waits.
#ifndef WEFT_BASE_EPOLL_H_
#define WEFT_BASE_EPOLL_H_

#include <sys/epoll.h>
#include <sys/types.h>

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/file_descriptor.h"

namespace weft {

class Epoll {
 public:
  Epoll() = default;  // none
  // kResourceExhausted: this process may open no more descriptors.
  static absl::StatusOr<Epoll> Create();
  // Readable when one of `descriptors` is: to wait for all of them as for one.
  static absl::StatusOr<Epoll> Watching(absl::Span<const int> descriptors);

  // Readable when a descriptor is ready; -1: none.
  int fd() const { return fd_.get(); }

  // `events`: EPOLLIN, ...
  absl::Status Add(int fd, uint32_t events, epoll_data_t data);
  absl::Status Change(int fd, uint32_t events, epoll_data_t data);
  // Before `fd` is closed: an epoll goes on watching a closed descriptor of which a forked process
  // holds a copy. Does nothing in a forked process: the epoll is its parent's.
  void Remove(int fd);

  // Fills `events` with what is ready, and returns how many that are. Sleeps until there is
  // something, or for `limit`, rounded up to milliseconds and an hour at most; zero: not at all.
  int Wait(absl::Span<epoll_event> events, absl::Duration limit) const;

 private:
  FileDescriptor fd_;
  pid_t process_ = -1;
};

}  // namespace weft

#endif  // WEFT_BASE_EPOLL_H_
