#include "net/shm/multicast_ring.h"

#include "base/status.h"

namespace weft::net::shm {

static_assert(std::atomic<uint64_t>::is_always_lock_free);
static_assert(sizeof(MulticastHead) == 64 && sizeof(MulticastEntry) == 16);

absl::StatusOr<MulticastWriter> MulticastWriter::Create(uint64_t payload) {
  WEFT_CHECK(payload > 0 && payload <= kBytesMax, "a payload of " << payload << " bytes");
  WEFT_ASSIGN_OR_RETURN(auto memory, SharedMemory::Create(MemoryBytes(payload)));
  return MulticastWriter(std::move(memory), payload);
}

std::unique_ptr<MulticastReader> MulticastReader::Open(std::shared_ptr<const std::byte> memory,
                                                       uint64_t bytes, uint64_t payload) {
  const uint64_t wanted = (MemoryBytes(payload) + kPageBytes - 1) / kPageBytes * kPageBytes;
  if (memory == nullptr || bytes != wanted) return nullptr;
  return std::unique_ptr<MulticastReader>(new MulticastReader(std::move(memory), payload));
}

}  // namespace weft::net::shm
