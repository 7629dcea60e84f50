// What weft-init's processes share: anonymous mappings, made before they are forked.
#ifndef WEFT_TOOLS_INIT_SHARED_H_
#define WEFT_TOOLS_INIT_SHARED_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "absl/status/statusor.h"
#include "base/status.h"

namespace weft::init {

// A rank's way into its job, in order.
enum class Phase : uint8_t { kConnect, kRegister, kExchange, kGroups, kConnections };
inline constexpr size_t kPhases = 5;
const char* ToString(Phase phase);

// When each phase of a rank was over, in nanoseconds of SystemClock.
struct RankTimes {
  int64_t begin = 0;
  std::array<int64_t, kPhases> end{};
};

struct Shared {
  std::atomic<int64_t> finished{0};  // ranks, for the progress line
  std::atomic<int64_t> messages_sent{0};
  std::atomic<int64_t> messages_received{0};
  std::atomic<int64_t> relay_messages{0};  // between hosts' relays and what is above them
  std::atomic<int64_t> above_messages{0};  // between relays of relays and the root

  std::atomic<int64_t> connections{0};  // between ranks

  // The replacement of ranks.
  std::atomic<int64_t> watches{0};
  std::atomic<int64_t> replace_end{0};

  RankTimes* times() { return reinterpret_cast<RankTimes*>(this + 1); }
};

struct Unmap {
  size_t bytes = 0;
  void operator()(void* memory) const;
};
absl::StatusOr<void*> MapZeroes(size_t bytes);

// An array of so many `T`, all zero, of which a mapping can be made without constructors.
template <typename T>
using SharedArray = std::unique_ptr<T[], Unmap>;
template <typename T>
absl::StatusOr<SharedArray<T>> MapArray(int count) {
  static_assert(std::is_trivially_copyable_v<T>);
  const size_t bytes = sizeof(T) * static_cast<size_t>(count);
  WEFT_ASSIGN_OR_RETURN(void* memory, MapZeroes(bytes));
  return SharedArray<T>(static_cast<T*>(memory), Unmap{bytes});
}

// For so many ranks.
using SharedMemory = std::unique_ptr<Shared, Unmap>;
absl::StatusOr<SharedMemory> MapShared(int ranks);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_SHARED_H_
