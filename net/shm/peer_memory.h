// A peer's process: whether it has exited, and its memory.
//
// Its memory is read where it lies: process_vm_readv(2), one copy instead of two. Linux allows
// it where ptrace(2) is allowed: the same user, no stricter Yama mode than 0 (or CAP_SYS_PTRACE),
// and no seccomp filter against it, as containers have. Where it is refused, messages go through
// the arena.
#ifndef WEFT_NET_SHM_PEER_MEMORY_H_
#define WEFT_NET_SHM_PEER_MEMORY_H_

#include <sys/types.h>

#include <cstddef>
#include <cstdint>

#include "net/shm/unix_socket.h"

namespace weft::net::shm {

enum class ReadResult : uint8_t {
  kRead,
  kRefused,  // errno says why: not here, or not these addresses
  kGone,     // the process has ended
};

// A descriptor of a process that is known to live, readable once that has exited. -1 where pid is 0
// (another pid namespace), the kernel has no pidfd_open(2) (before Linux 5.3), or no descriptor is
// left.
FileDescriptor OpenProcess(pid_t pid);
// False for -1.
bool HasExited(int process);

// Whether such a read takes less of the cores' time than both ends of a link that copy. The kernel
// maps and pins pages for each read, and copies by other instructions than a program: from one
// machine to another it is between half and four times as fast as a copy. Measured by the first
// call, in less than a millisecond; false where it is refused. Thread-safe.
bool ReadingPays();

class PeerMemory {
 public:
  PeerMemory() = default;
  // `process` is OpenProcess(pid), and outlives it. Unusable where that is -1.
  PeerMemory(pid_t pid, int process) : pid_(pid), process_(process) {}

  bool usable() const { return process_ >= 0 && !given_up_; }
  void GiveUp() { given_up_ = true; }  // what is partly read may still be read to its end

  // All `bytes` from the peer's `address`, or nothing that counts.
  ReadResult Read(uint64_t address, std::byte* out, size_t bytes) const;
  // That what was read came from the process that the descriptor was opened for, and not from one
  // that has got its number since.
  bool Lives() const { return !HasExited(process_); }

 private:
  pid_t pid_ = 0;
  int process_ = -1;
  bool given_up_ = false;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_PEER_MEMORY_H_
