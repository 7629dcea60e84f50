#include "trainer/memory/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "trainer/memory/memory_pool.h"

namespace weft::train {
namespace {

// In front of each tensor's memory: its Header. A cache line, which is what LibTorch aligns to.
constexpr size_t kHeader = 64;

std::atomic<int64_t> in_use{0};
std::atomic<int64_t> peak{0};
std::atomic<bool> counts{false};

void Count(int64_t bytes) {
  const int64_t now = in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes;
  int64_t most = peak.load(std::memory_order_relaxed);
  while (now > most && !peak.compare_exchange_weak(most, now, std::memory_order_relaxed)) {
  }
}

// Smaller tensors are malloc's, which keeps the pages of its heap itself.
constexpr size_t kSmallestPiece = size_t{64} << 10;

MemoryPool& Pool() {
  static MemoryPool* const pool = new MemoryPool();  // for ever: tensors may outlive all else
  return *pool;
}

struct Header {
  size_t bytes = 0;  // of the tensor
  size_t piece = 0;  // of the pool's piece, with this; 0: it is malloc's
};
static_assert(sizeof(Header) <= kHeader);

void Free(void* data) {
  if (data == nullptr) return;
  char* const begin = static_cast<char*>(data) - kHeader;
  const Header header = *reinterpret_cast<Header*>(begin);
  Count(-static_cast<int64_t>(header.bytes));
  header.piece > 0 ? Pool().Free(begin, header.piece) : std::free(begin);
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::Device device(c10::DeviceType::CPU);
    if (bytes == 0) return {nullptr, nullptr, &Free, device};
    void* begin = nullptr;
    size_t size = bytes + kHeader;
    if (size < kSmallestPiece) {
      if (posix_memalign(&begin, kHeader, size) != 0) throw std::bad_alloc();
      size = 0;
    } else {
      begin = Pool().Allocate(size);
      if (begin == nullptr) throw std::bad_alloc();
    }
    *static_cast<Header*>(begin) = {.bytes = bytes, .piece = size};
    Count(static_cast<int64_t>(bytes));
    void* data = static_cast<char*>(begin) + kHeader;
    return {data, data, &Free, device};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &Free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }
};

Bytes FromFile(const char* path, const char* key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    long long kibibytes = 0;
    if (absl::StartsWith(line, key) &&
        std::sscanf(line.c_str() + std::string(key).size(), " %lld kB", &kibibytes) == 1) {
      return KiB(kibibytes);
    }
  }
  return Bytes(0);
}

std::optional<int64_t> NumberIn(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  int64_t number = 0;
  if (!std::getline(file, text) || !absl::SimpleAtoi(text, &number)) return std::nullopt;
  return number;
}

// The least memory.max on the way from this process's control group to the root, or where
// `available` what is left of it; the largest number where none is set.
int64_t GroupLimit(bool available = false) {
  int64_t least = std::numeric_limits<int64_t>::max();
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    if (!absl::StartsWith(line, "0::")) continue;
    std::string path = line.substr(3);
    for (;;) {
      const std::string folder = "/sys/fs/cgroup" + path;
      if (const std::optional<int64_t> limit = NumberIn(folder + "/memory.max")) {
        const int64_t used = available ? NumberIn(folder + "/memory.current").value_or(0) : 0;
        least = std::min(least, *limit - used);
      }
      if (path.empty() || path == "/") break;
      path = path.substr(0, path.rfind('/'));
    }
  }
  return least;
}

}  // namespace

void CountTensorMemory() {
  static CountingAllocator* const allocator = [] {
    auto* made = new CountingAllocator();  // for ever: tensors may outlive all else
    c10::SetCPUAllocator(made, /*priority=*/1);
    counts = true;
    return made;
  }();
  (void)allocator;
}

void AddTensorMemory(int64_t bytes) {
  if (counts) Count(bytes);
}

Bytes TensorMemory() { return Bytes(in_use.load()); }
Bytes PeakTensorMemory() { return Bytes(peak.load()); }
void ForgetTensorPeak() { peak.store(in_use.load()); }

Bytes ResidentMemory() { return FromFile("/proc/self/status", "VmRSS:"); }
Bytes PeakResidentMemory() { return FromFile("/proc/self/status", "VmHWM:"); }
Bytes AnonymousMemory() { return FromFile("/proc/self/status", "RssAnon:"); }
int64_t MinorFaults() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return usage.ru_minflt;
}
int64_t TensorMappings() { return Pool().mappings(); }
void GiveBackFreeMemory() { Pool().GiveBack(); }

Bytes AvailableMemory() {
  return Bytes(
      std::min(FromFile("/proc/meminfo", "MemAvailable:").count(), GroupLimit(/*available=*/true)));
}
Bytes MachineMemory() {
  return Bytes(std::min(FromFile("/proc/meminfo", "MemTotal:").count(), GroupLimit()));
}

}  // namespace weft::train
