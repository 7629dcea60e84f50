#include "tests/plugins/gpu/scripted/gpu.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace weft::scripted {
namespace {

constexpr size_t kPage = 4096;
constexpr int kFresh = 0xa5;  // what fresh memory holds: whoever counts on zeros is seen

}  // namespace

Gpu& Gpu::The() {
  static auto* gpu = new Gpu;  // threads of NCCL may outlive main
  return *gpu;
}

int Gpu::Allocate(void** address, size_t size, MemoryType type) {
  size_t whole = (std::max<size_t>(size, 1) + kPage - 1) / kPage * kPage;
  auto* memory = static_cast<char*>(aligned_alloc(kPage, whole));
  memset(memory, kFresh, whole);
  std::lock_guard lock(mutex_);
  memory_[memory] = {memory, whole, type};
  *address = memory;
  return kSuccess;
}

int Gpu::Free(void* address) {
  if (address == nullptr) return kSuccess;
  {
    std::lock_guard lock(mutex_);
    if (memory_.erase(static_cast<char*>(address)) == 0) return kInvalidValue;
  }
  free(address);
  return kSuccess;
}

std::optional<Memory> Gpu::Find(const void* address) {
  const auto* at = static_cast<const char*>(address);
  std::lock_guard lock(mutex_);
  auto after = memory_.upper_bound(at);
  if (after == memory_.begin()) return std::nullopt;
  const Memory& found = std::prev(after)->second;
  if (at >= found.address + found.size) return std::nullopt;
  return found;
}

Stream* Gpu::NewStream() {
  auto* stream = new Stream;
  std::lock_guard lock(mutex_);
  streams_.insert(stream);
  return stream;
}

void Gpu::EndStream(Stream* stream) {
  {
    std::lock_guard lock(mutex_);
    streams_.erase(stream);
  }
  delete stream;
}

Stream& Gpu::Resolve(void* stream) {
  return stream == nullptr ? default_stream_ : *static_cast<Stream*>(stream);
}

void Gpu::Drain() {
  std::vector<Stream*> all = {&default_stream_};
  {
    std::lock_guard lock(mutex_);
    all.insert(all.end(), streams_.begin(), streams_.end());
  }
  for (Stream* stream : all) stream->Drain();
}

}  // namespace weft::scripted
