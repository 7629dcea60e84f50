#include "net/shm/doorbell.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

#include <utility>

#include "base/status.h"

namespace weft::net::shm {

absl::StatusOr<Doorbell> Doorbell::Create() {
  Doorbell bell;
  bell.event_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (bell.event_.get() < 0) return ErrnoStatus(errno, "create an eventfd");
  WEFT_ASSIGN_OR_RETURN(bell.memory_, CreateSealedMemory("weft-bell", kPageBytes));
  WEFT_ASSIGN_OR_RETURN(bell.mapping_, Mapping::Map(bell.memory_.get(), kPageBytes));
  return bell;
}

absl::StatusOr<PeerBell> PeerBell::Adopt(FileDescriptor event, int page_fd) {
  struct stat status {};
  int flags = fcntl(event.get(), F_GETFL);
  // Anonymous inodes have no file type; a write to one of ours can neither block nor raise SIGPIPE.
  if (fstat(event.get(), &status) != 0 || (status.st_mode & S_IFMT) != 0 || flags < 0 ||
      (flags & O_NONBLOCK) == 0) {
    return absl::InvalidArgumentError("the doorbell that the peer passed is no eventfd");
  }
  WEFT_ASSIGN_OR_RETURN(uint64_t bytes, CheckSealedMemory(page_fd));
  if (bytes != kPageBytes) {
    return absl::InvalidArgumentError("the doorbell page that the peer passed is no page");
  }
  PeerBell bell;
  bell.event_ = std::move(event);
  WEFT_ASSIGN_OR_RETURN(bell.mapping_, Mapping::Map(page_fd, bytes));
  return bell;
}

void PeerBell::Write() {
  uint64_t one = 1;
  // Fails only when the counter is full, and then the sleeper is awake already.
  [[maybe_unused]] ssize_t written = write(event_.get(), &one, sizeof one);
}

}  // namespace weft::net::shm
