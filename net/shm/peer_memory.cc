#include "net/shm/peer_memory.h"

#include <poll.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <bit>
#include <cerrno>

namespace weft::net::shm {

FileDescriptor OpenProcess(pid_t pid) {
#if defined(SYS_pidfd_open)
  if (pid > 0) return FileDescriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
#endif
  return FileDescriptor();
}

bool HasExited(int process) {
  pollfd exited{process, POLLIN, 0};
  return poll(&exited, 1, 0) == 1;
}

ReadResult PeerMemory::Read(uint64_t address, std::byte* out, size_t bytes) const {
  while (bytes > 0) {
    iovec to{out, bytes};
    iovec from{std::bit_cast<void*>(uintptr_t{address}), bytes};
    ssize_t got = process_vm_readv(pid_, &to, 1, &from, 1, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno == ESRCH ? ReadResult::kGone : ReadResult::kRefused;
    if (got == 0) return ReadResult::kGone;
    address += static_cast<uint64_t>(got);
    out += got;
    bytes -= static_cast<size_t>(got);
  }
  return ReadResult::kRead;
}

}  // namespace weft::net::shm
