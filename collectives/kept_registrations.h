// Registrations that outlive an operation, so that the next one costs none: of memory from
// Endpoint::Allocate(), which tells when it goes, and of what a caller promised to keep
// (keep_registered.h). Other memory may be unmapped at any time between two operations, and is
// registered for one alone (docs/decisions/0017).
//
// Used by the thread that drives the endpoint, and nobody else.
#ifndef WEFT_COLLECTIVES_KEPT_REGISTRATIONS_H_
#define WEFT_COLLECTIVES_KEPT_REGISTRATIONS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/statusor.h"
#include "collectives/peers.h"
#include "net/shm/shared_memory.h"
#include "net/transport.h"

namespace weft::collectives {

class KeptRegistrations {
 public:
  // Where registering costs something, and lasts.
  static bool Serves(const net::Transport& transport) {
    return transport.kind() == net::TransportKind::kVerbs;
  }
  // For an operation: within a kept registration where [data, data + size) lies in such memory, all
  // of which is then registered; else, or where all of it cannot be, one of its own. `index` is the
  // transport's.
  absl::StatusOr<net::Region> Register(net::Transport& transport, int index, void* data,
                                       size_t size);
  // [data, data + size) stays mapped where it is until Drop() of `data`. False: other memory that
  // begins there was added before.
  bool Add(std::byte* data, size_t size);
  void Drop(std::byte* data) { promised_.erase(data); }
  // Deregisters what Endpoint::Allocate() gave and has gone since the last time. Cheap if nothing
  // has.
  void DropGone();

 private:
  struct Piece {
    std::weak_ptr<net::shm::SharedMemory> memory;  // of Endpoint::Allocate()
    size_t size = 0;
    std::array<net::Region, kTransportsMax> regions;  // by transport
    std::array<bool, kTransportsMax> is_refused{};    // it cannot be registered as a whole
  };
  using Pieces = std::map<std::byte*, Piece>;  // by address

  // Null: it lies in none.
  Pieces::value_type* Find(std::byte* data, size_t size);

  Pieces given_, promised_;
  uint64_t gone_seen_ = 0;  // SharedMemory::gone() at the last DropGone()
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_KEPT_REGISTRATIONS_H_
