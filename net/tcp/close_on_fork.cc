#include "net/tcp/close_on_fork.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdint>

namespace weft::net {
namespace {

constexpr size_t kDescriptors = 1 << 16;

// The inode of a socket, by descriptor; 0: none. It stays when the socket is closed: another file
// that gets the number has another inode.
std::array<std::atomic<uint64_t>, kDescriptors> inodes;
std::atomic<size_t> used = 0;  // above the highest descriptor

uint64_t InodeOf(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 && S_ISSOCK(info.st_mode) ? uint64_t{info.st_ino} : 0;
}

// In the child, where other threads may have held any lock: system calls and atomics only.
void CloseInChild() {
  const int error = errno;
  int nothing = -1;
  for (size_t fd = 0; fd < used.load(std::memory_order_relaxed); ++fd) {
    const uint64_t inode = inodes[fd].load(std::memory_order_relaxed);
    if (inode == 0) continue;  // a store would have the kernel copy the page
    inodes[fd].store(0, std::memory_order_relaxed);
    if (InodeOf(static_cast<int>(fd)) != inode) continue;
    if (nothing < 0) nothing = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (nothing >= 0) dup3(nothing, static_cast<int>(fd), O_CLOEXEC);
  }
  if (nothing >= 0) close(nothing);
  errno = error;
}

}  // namespace

void SetCloseOnFork(int fd) {
  static const int registered = pthread_atfork(nullptr, nullptr, &CloseInChild);
  if (registered != 0 || fd < 0 || static_cast<size_t>(fd) >= kDescriptors) return;
  const auto at = static_cast<size_t>(fd);
  inodes[at].store(InodeOf(fd), std::memory_order_relaxed);
  for (size_t end = used.load(std::memory_order_relaxed);
       end <= at && !used.compare_exchange_weak(end, at + 1, std::memory_order_relaxed);) {
  }
}

}  // namespace weft::net
