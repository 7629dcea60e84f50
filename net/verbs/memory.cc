#include "net/verbs/memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr uintptr_t kPage = 4096;

// The whole pages that hold it.
std::unique_ptr<MemoryCache::Entry> Pages(const void* data, size_t size) {
  auto entry = std::make_unique<MemoryCache::Entry>();
  const auto at = reinterpret_cast<uintptr_t>(data);
  entry->begin = at / kPage * kPage;
  entry->end = (at + std::max<size_t>(size, 1) + kPage - 1) / kPage * kPage;
  return entry;
}

}  // namespace

MemoryCache::MemoryCache(std::vector<NicDevice*> devices, bool relaxed)
    : devices_(std::move(devices)), relaxed_(relaxed) {}

MemoryCache::~MemoryCache() {
  for (auto& [begin, entry] : entries_) Deregister(*entry, devices_.size());
}

absl::StatusOr<const MemoryCache::Entry*> MemoryCache::Acquire(void* data, size_t size,
                                                               bool relaxed) {
  const Entry* found = Find(data, size);
  if (found != nullptr && relaxed && !found->is_device) {
    AddUser(found);
    return found;
  }
  return Add(Pages(data, size), [&](NicDevice& device, void* begin, size_t bytes) {
    return device.Register(begin, bytes, {.relaxed = relaxed && relaxed_});
  });
}

absl::StatusOr<const MemoryCache::Entry*> MemoryCache::AcquireDevice(const DeviceMemory& memory) {
  const NicAccess access = {.relaxed = relaxed_, .readable = true};  // flushes read
  if (memory.dma_buf < 0) {
    const Entry* found = Find(memory.data, memory.size);
    if (found != nullptr && found->is_device && !found->dma_buf.has_value()) {
      AddUser(found);
      return found;
    }
    std::unique_ptr<Entry> entry = Pages(memory.data, memory.size);
    entry->is_device = true;
    return Add(std::move(entry), [&](NicDevice& device, void* begin, size_t bytes) {
      return device.Register(begin, bytes, access);
    });
  }
  struct stat file {};
  if (fstat(memory.dma_buf, &file) != 0) {
    return ErrnoStatus(errno, absl::StrCat("look at DMA-BUF ", memory.dma_buf));
  }
  auto entry = std::make_unique<Entry>();
  entry->begin = reinterpret_cast<uintptr_t>(memory.data);
  entry->end = entry->begin + memory.size;
  entry->is_device = true;
  entry->dma_buf = {file.st_dev, file.st_ino, memory.offset};
  auto [from, to] = entries_.equal_range(entry->begin);
  for (auto one = from; one != to; ++one) {
    const bool is_same = one->second->end == entry->end && one->second->dma_buf == entry->dma_buf;
    if (!is_same || one->second->users == 0) continue;
    AddUser(one->second.get());
    return one->second.get();
  }
  return Add(std::move(entry), [&](NicDevice& device, void* begin, size_t bytes) {
    return device.RegisterDmaBuf(memory.dma_buf, memory.offset, bytes, begin, access);
  });
}

template <typename Register>
absl::StatusOr<const MemoryCache::Entry*> MemoryCache::Add(std::unique_ptr<Entry> entry,
                                                           const Register& one) {
  const size_t bytes = entry->end - entry->begin;
  for (size_t rail = 0; rail < devices_.size(); ++rail) {
    auto memory = one(*devices_[rail], reinterpret_cast<void*>(entry->begin), bytes);  // NOLINT
    if (!memory.ok()) {
      Deregister(*entry, rail);
      return Annotate(memory.status(),
                      absl::StrCat("register ", bytes, " bytes",
                                   entry->is_device ? " of a device's memory" : ""));
    }
    entry->keys[rail] = *memory;
  }
  entry->users = 1;
  device_entries_ += entry->is_device ? 1 : 0;
  longest_ = std::max(longest_, bytes);
  const Entry* out = entry.get();
  entries_.emplace(out->begin, std::move(entry));
  return out;
}

bool MemoryCache::IsShared(const Entry& entry) {
  for (auto one = FirstAt(entry.begin); one != entries_.end() && one->first < entry.end; ++one) {
    const Entry& other = *one->second;
    if (other.users > 0 && other.end > entry.begin) return true;
  }
  return false;
}

void MemoryCache::Release(const Entry* entry) {
  if (--const_cast<Entry*>(entry)->users > 0) return;
  // Itself, and others that only waited for it.
  const uintptr_t begin = entry->begin, end = entry->end;
  for (auto one = FirstAt(begin); one != entries_.end() && one->first < end;) {
    const Entry& other = *one->second;
    if (other.users > 0 || other.end <= begin || IsShared(other)) {
      ++one;
      continue;
    }
    Deregister(other, devices_.size());
    device_entries_ -= other.is_device ? 1 : 0;
    one = entries_.erase(one);
  }
}

const MemoryCache::Entry* MemoryCache::Find(const void* data, size_t size) const {
  const auto begin = reinterpret_cast<uintptr_t>(data), end = begin + size;
  for (auto one = entries_.upper_bound(begin); one != entries_.begin();) {
    --one;
    const Entry& entry = *one->second;
    if (entry.end >= end && entry.users > 0) return &entry;
    if (begin - entry.begin > longest_) break;
  }
  return nullptr;
}

void MemoryCache::Deregister(const Entry& entry, size_t rails) {
  for (size_t rail = 0; rail < rails; ++rail) devices_[rail]->Deregister(entry.keys[rail]);
}

}  // namespace weft::net
