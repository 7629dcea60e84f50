#include "tests/net/verbs/scripted_memory.h"

#include <sys/mman.h>

#include <cstring>
#include <utility>

namespace weft::net::scripted {

NicMemory MemoryTable::Add(const DeviceState* device, void* data, size_t size, bool readable) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  // A second mapping of the same pages; the kernel makes none of a private mapping.
  void* pages = mremap(data, 0, size, MREMAP_MAYMOVE);
  auto* mapped = pages == MAP_FAILED ? nullptr : static_cast<std::byte*>(pages);
  return Insert({device, begin, begin + size, readable, mapped, false, {}});
}

NicMemory MemoryTable::AddDmaBuf(const DeviceState* device, void* data, size_t size, bool readable,
                                 std::byte* mapped) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return Insert({device, begin, begin + size, readable, mapped, true, {}});
}

NicMemory MemoryTable::Insert(Registered registered) {
  const uint32_t key = next_key_++;
  registered_[key] = std::move(registered);
  return NicMemory{key, key, key};
}

void MemoryTable::Remove(uint32_t key) {
  auto found = registered_.find(key);
  const Registered& one = found->second;
  if (one.mapped != nullptr) munmap(one.mapped, one.end - one.begin);
  registered_.erase(found);
}

bool MemoryTable::Covers(uint32_t key, const DeviceState* device, uintptr_t begin,
                         size_t size) const {
  auto found = registered_.find(key);
  return found != registered_.end() && found->second.device == device &&
         begin >= found->second.begin && begin + size <= found->second.end;
}

std::byte* MemoryTable::At(uint32_t key, uintptr_t address) {
  const Registered& one = registered_.at(key);
  if (one.mapped != nullptr) return one.mapped + (address - one.begin);
  return reinterpret_cast<std::byte*>(address);  // NOLINT: it is one
}

void MemoryTable::Write(uint32_t key, uintptr_t address, const std::byte* from, size_t bytes) {
  Registered& one = registered_.at(key);
  if (!one.is_dma_buf) {
    std::memcpy(At(key, address), from, bytes);
  } else {
    one.unseen.emplace_back(address - one.begin, std::vector<std::byte>(from, from + bytes));
  }
}

NicStatus MemoryTable::Read(const NicWrite& read, const DeviceState* device) {
  if (!Covers(read.remote_key, device, read.remote, read.length) ||
      !registered_.at(read.remote_key).readable) {
    return NicStatus::kRemoteAccess;
  }
  for (auto& [key, one] : registered_) {
    if (one.device != device) continue;
    for (const auto& [offset, bytes] : std::exchange(one.unseen, {})) {
      std::memcpy(one.mapped + offset, bytes.data(), bytes.size());
    }
  }
  std::memcpy(const_cast<std::byte*>(read.local), At(read.remote_key, read.remote), read.length);
  return NicStatus::kOk;
}

size_t MemoryTable::unseen() const {
  size_t count = 0;
  for (const auto& [key, one] : registered_) count += one.unseen.size();
  return count;
}

}  // namespace weft::net::scripted
