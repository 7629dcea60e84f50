// Memory that a process gives its user and that its peers on the host map, so that they read
// messages, and reduce them, where they lie.
// Reasons: docs/decisions/0012-buffers-that-peers-map.md.
#ifndef WEFT_NET_SHM_SHARED_MEMORY_H_
#define WEFT_NET_SHM_SHARED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>

#include "absl/status/statusor.h"
#include "base/file_descriptor.h"
#include "net/shm/segment.h"
#include "net/shm/unix_socket.h"

namespace weft::net::shm {

// A stretch of a process's own memory in a sealed memfd, zeroes at first. Thread-safe.
class SharedMemory {
 public:
  static absl::StatusOr<std::shared_ptr<SharedMemory>> Create(uint64_t bytes);
  ~SharedMemory();
  // The living one that holds [data, data + bytes), or null.
  static std::shared_ptr<SharedMemory> Find(const std::byte* data, uint64_t bytes);
  // How many have gone in this process.
  static uint64_t gone();

  std::byte* data() const { return mapping_.data(); }
  uint64_t bytes() const { return mapping_.bytes(); }
  int fd() const { return fd_.get(); }

 private:
  SharedMemory() = default;
  FileDescriptor fd_;
  Mapping mapping_;
};

// `bytes` zeroes, aligned to pages. From 64 KiB on they lie in a SharedMemory, while at least half
// of the process's descriptors are left to links and files. Null: there is no memory.
std::shared_ptr<std::byte> AllocateMemory(size_t bytes);

// Where bytes lie in memory that a link's receiver knows by a number.
struct SharedPlace {
  uint32_t share = 0;  // from 1
  uint64_t offset = 0;
};

// The sender's end: what it has shown to the receiver of one link.
class SharesShown {
 public:
  static constexpr size_t kMost = 4096;  // memories at a time; what lies in others is copied
  // Passes the descriptor over the link's socket the first time. Nothing: not now, or the receiver
  // has refused.
  std::optional<SharedPlace> Show(const std::shared_ptr<SharedMemory>& memory,
                                  const std::byte* data, int socket);
  // Whether Show() may ever have a place for it.
  bool CanShow(const SharedMemory& memory) const {
    return !refused_ && (shown_.size() < kMost || shown_.contains(&memory));
  }
  // The receiver could not map one: it is asked no more.
  void Refuse() { refused_ = true; }
  bool refused() const { return refused_; }
  // The number of one that has gone since it was shown, once; 0: none.
  uint32_t TakeGone();

 private:
  struct Shown {
    uint32_t share = 0;
    std::weak_ptr<SharedMemory> memory;
  };
  std::map<const SharedMemory*, Shown> shown_;
  uint32_t next_ = 1;
  uint64_t gone_seen_ = 0;  // SharedMemory::gone() when all that is shown was last looked at
  bool refused_ = false;
};

// The receiver's end: what a peer has shown, mapped for reading.
class SharesSeen {
 public:
  // Memories at a time: as many as a peer may show, and as many that it has withdrawn by messages
  // in the ring that this end has not read yet.
  static constexpr size_t kMost = 2 * SharesShown::kMost;
  // A packet of the link's socket. An error: it is none that a peer sends.
  absl::Status Take(const Packet& packet);
  // Null: never seen, or it could not be mapped.
  std::shared_ptr<const Mapping> Find(uint32_t share) const;
  void Drop(uint32_t share) { seen_.erase(share); }

 private:
  std::map<uint32_t, std::shared_ptr<const Mapping>> seen_;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_SHARED_MEMORY_H_
