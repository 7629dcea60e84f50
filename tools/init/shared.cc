#include "tools/init/shared.h"

#include <sys/mman.h>

#include <cerrno>
#include <new>

#include "base/status.h"

namespace weft::init {

const char* ToString(Phase phase) {
  switch (phase) {
    case Phase::kConnect:
      return "connect";
    case Phase::kRegister:
      return "register";
    case Phase::kExchange:
      return "exchange";
    case Phase::kGroups:
      return "groups";
    case Phase::kConnections:
      return "connections";
  }
  return "unknown";
}

void Unmap::operator()(void* memory) const { munmap(memory, bytes); }

absl::StatusOr<void*> MapZeroes(size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return ErrnoStatus(errno, "map memory for the processes' times");
  return memory;
}

absl::StatusOr<SharedMemory> MapShared(int ranks) {
  size_t bytes = sizeof(Shared) + sizeof(RankTimes) * static_cast<size_t>(ranks);
  WEFT_ASSIGN_OR_RETURN(void* memory, MapZeroes(bytes));
  return SharedMemory(new (memory) Shared(), Unmap{bytes});
}

}  // namespace weft::init
