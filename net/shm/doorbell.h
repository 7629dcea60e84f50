// How a sleeping process is woken: one eventfd and one shared word a process, given to every peer.
//
//   the sleeper:  Arm(); look once more for work (after the fence inside); poll
//   a peer:       publish; FullFence(); Ring()
//
// At least one of the two sees the other's store, so no wake-up is lost. The first peer to ring
// exchanges the word back to 0, so a sleeper costs all its peers together one system call, and a
// process that spins costs none.
#ifndef WEFT_NET_SHM_DOORBELL_H_
#define WEFT_NET_SHM_DOORBELL_H_

#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "net/shm/segment.h"
#include "net/shm/unix_socket.h"

namespace weft::net::shm {

struct alignas(kCellBytes) BellPage {
  std::atomic<uint32_t> sleeping;
};

// This process's doorbell.
class Doorbell {
 public:
  static absl::StatusOr<Doorbell> Create();
  int event_fd() const { return event_.get(); }
  int page_fd() const { return memory_.get(); }
  void Arm() {
    page()->sleeping.store(1, std::memory_order_release);
    FullFence();
  }
  void Disarm() { page()->sleeping.store(0, std::memory_order_relaxed); }

 private:
  BellPage* page() const { return reinterpret_cast<BellPage*>(mapping_.data()); }
  FileDescriptor event_;
  FileDescriptor memory_;
  Mapping mapping_;
};

// A peer's doorbell.
class PeerBell {
 public:
  PeerBell() = default;
  // Takes what a peer passed; kInvalidArgument when it is no eventfd or no page.
  static absl::StatusOr<PeerBell> Adopt(FileDescriptor event, int page_fd);
  // Without a fence, so that a process that is falling asleep may not be seen.
  bool SeemsAsleep() const { return page()->sleeping.load(std::memory_order_acquire) != 0; }
  // After FullFence().
  void Ring() {
    if (page()->sleeping.load(std::memory_order_relaxed) == 0) [[likely]]
      return;
    if (page()->sleeping.exchange(0, std::memory_order_relaxed) != 0) Write();
  }

 private:
  BellPage* page() const { return reinterpret_cast<BellPage*>(mapping_.data()); }
  void Write();
  FileDescriptor event_;
  Mapping mapping_;
};

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_DOORBELL_H_
