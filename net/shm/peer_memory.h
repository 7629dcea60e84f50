// Reading a peer's memory where it lies: process_vm_readv(2), one copy instead of two. Linux allows
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

class PeerMemory {
 public:
  PeerMemory() = default;
  // Reads a process that is known to live. Unusable where pid is 0 (another pid namespace) or the
  // kernel has no pidfd_open(2) (before Linux 5.3).
  explicit PeerMemory(pid_t pid);

  bool usable() const { return pidfd_.get() >= 0; }
  void GiveUp() { pidfd_.Reset(); }

  // All `bytes` from the peer's `address`, or nothing that counts.
  ReadResult Read(uint64_t address, std::byte* out, size_t bytes) const;
  // That what was read came from the process that the descriptor was opened for, and not from one
  // that has got its number since.
  bool Lives() const;

 private:
  pid_t pid_ = 0;
  FileDescriptor pidfd_;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_PEER_MEMORY_H_
