#include "trainer/kernel_choice/read_bandwidth.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <limits>

#include "absl/time/time.h"
#include "base/clock.h"
#include "trainer/kernels/decode.h"

namespace weft::train {
namespace {

constexpr absl::Duration kDuration = absl::Milliseconds(330);
constexpr int kPassesLeast = 3;

}  // namespace

Bandwidth ReadBandwidth(Bytes size) {
  const size_t length = static_cast<size_t>(std::max<int64_t>(1, size.count()));
  void* memory = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return {};
  madvise(memory, length, MADV_HUGEPAGE);
  std::memset(memory, 1, length);
  const auto& kernels = kernels::Decoding();
  uint32_t sum = 0;
  int64_t best = std::numeric_limits<int64_t>::max();
  const int64_t start = SystemClock::Nanoseconds();
  int64_t now = start;
  for (int pass = 0; pass < kPassesLeast || now - start < absl::ToInt64Nanoseconds(kDuration);
       ++pass) {
    const int64_t before = SystemClock::Nanoseconds();
    sum ^= kernels.read(static_cast<int64_t>(length), static_cast<const std::byte*>(memory));
    now = SystemClock::Nanoseconds();
    best = std::min(best, std::max<int64_t>(1, now - before));
  }
  // The sums are a result, so that no pass is left out.
  std::memcpy(memory, &sum, std::min(sizeof(sum), length));
  munmap(memory, length);
  return Bytes(static_cast<int64_t>(length)) / absl::Nanoseconds(best);
}

}  // namespace weft::train
