#include "net/verbs/memory.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

using Range = MemoryCache::Range;

constexpr uintptr_t kPage = 4096;

Range RangeOf(const void* data, size_t size) {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  return {begin, begin + size};
}

// The whole pages that hold it.
Range PagesOf(const Range& range) {
  const uintptr_t begin = range.begin / kPage * kPage;
  return {begin, (std::max(range.end, range.begin + 1) + kPage - 1) / kPage * kPage};
}

std::unique_ptr<MemoryCache::Entry> EntryOf(const Range& pages) {
  auto entry = std::make_unique<MemoryCache::Entry>();
  entry->begin = pages.begin, entry->end = pages.end;
  return entry;
}

void AddUser(MemoryCache::Entry& entry, const Range& range) {
  if (entry.users.empty() && entry.used == Range{}) entry.used = range;
  entry.used = {std::min(entry.used.begin, range.begin), std::max(entry.used.end, range.end)};
  entry.users.push_back(range);
}

}  // namespace

MemoryCache::MemoryCache(std::vector<NicDevice*> devices, bool relaxed)
    : devices_(std::move(devices)), relaxed_(relaxed) {}

MemoryCache::~MemoryCache() {
  for (auto& [begin, entry] : entries_) Deregister(*entry, devices_.size());
}

absl::StatusOr<const MemoryCache::Entry*> MemoryCache::Acquire(void* data, size_t size,
                                                               bool relaxed) {
  return AcquireHost(RangeOf(data, size), relaxed, /*for_later=*/false);
}

absl::StatusOr<const MemoryCache::Entry*> MemoryCache::AcquireForLater(void* data, size_t size) {
  return AcquireHost(RangeOf(data, size), /*relaxed=*/true, /*for_later=*/true);
}

absl::StatusOr<const MemoryCache::Entry*> MemoryCache::AcquireHost(const Range& range, bool relaxed,
                                                                   bool for_later) {
  const Range pages = PagesOf(range);
  if (Entry* found = relaxed ? FindShareable(pages, false) : nullptr; found != nullptr) {
    if (!for_later) WEFT_RETURN_IF_ERROR(RegisterHost(*found, relaxed));
    AddUser(*found, range);
    return found;
  }
  std::unique_ptr<Entry> entry = EntryOf(pages);
  if (!for_later) WEFT_RETURN_IF_ERROR(RegisterHost(*entry, relaxed));
  return Add(std::move(entry), range);
}

absl::StatusOr<const MemoryCache::Entry*> MemoryCache::AcquireDevice(const DeviceMemory& memory) {
  const NicAccess access = {.relaxed = relaxed_, .readable = true};  // flushes read
  const Range range = RangeOf(memory.data, memory.size);
  if (memory.dma_buf < 0) {
    const Range pages = PagesOf(range);
    if (Entry* found = FindShareable(pages, true); found != nullptr) {
      AddUser(*found, range);
      return found;
    }
    std::unique_ptr<Entry> entry = EntryOf(pages);
    entry->is_device = true;
    WEFT_RETURN_IF_ERROR(RegisterOnAll(*entry, [&](NicDevice& device, void* begin, size_t bytes) {
      return device.Register(begin, bytes, access);
    }));
    return Add(std::move(entry), range);
  }
  struct stat file {};
  if (fstat(memory.dma_buf, &file) != 0) {
    return ErrnoStatus(errno, absl::StrCat("look at DMA-BUF ", memory.dma_buf));
  }
  std::unique_ptr<Entry> entry = EntryOf(range);
  entry->is_device = true;
  entry->dma_buf = {file.st_dev, file.st_ino, memory.offset};
  auto [from, to] = entries_.equal_range(entry->begin);
  for (auto one = from; one != to; ++one) {
    const bool is_same = one->second->end == entry->end && one->second->dma_buf == entry->dma_buf;
    if (!is_same || one->second->users.empty()) continue;
    AddUser(*one->second, range);
    return one->second.get();
  }
  WEFT_RETURN_IF_ERROR(RegisterOnAll(*entry, [&](NicDevice& device, void* begin, size_t bytes) {
    return device.RegisterDmaBuf(memory.dma_buf, memory.offset, bytes, begin, access);
  }));
  return Add(std::move(entry), range);
}

MemoryCache::Entry* MemoryCache::FindShareable(const Range& pages, bool is_device) const {
  for (auto one = entries_.upper_bound(pages.begin); one != entries_.begin();) {
    --one;
    Entry& entry = *one->second;
    if (entry.is_device == is_device && !entry.dma_buf.has_value() &&
        std::any_of(entry.users.begin(), entry.users.end(),
                    [&](const Range& user) { return PagesOf(user).Holds(pages); })) {
      return &entry;
    }
    if (pages.begin - entry.begin > longest_) break;
  }
  return nullptr;
}

const MemoryCache::Entry* MemoryCache::Add(std::unique_ptr<Entry> entry, const Range& user) {
  AddUser(*entry, user);
  device_entries_ += entry->is_device ? 1 : 0;
  longest_ = std::max(longest_, entry->end - entry->begin);
  const Entry* out = entry.get();
  entries_.emplace(out->begin, std::move(entry));
  return out;
}

absl::Status MemoryCache::RegisterHost(Entry& entry, bool relaxed) {
  if (entry.is_registered) return absl::OkStatus();
  return RegisterOnAll(entry, [&](NicDevice& device, void* begin, size_t bytes) {
    return device.Register(begin, bytes, {.relaxed = relaxed && relaxed_});
  });
}

template <typename Register>
absl::Status MemoryCache::RegisterOnAll(Entry& entry, const Register& one) {
  const size_t bytes = entry.end - entry.begin;
  entry.is_registered = true;
  for (size_t rail = 0; rail < devices_.size(); ++rail) {
    auto memory = one(*devices_[rail], reinterpret_cast<void*>(entry.begin), bytes);  // NOLINT
    if (!memory.ok()) {
      Deregister(entry, rail);
      entry.is_registered = false;
      return Annotate(memory.status(),
                      absl::StrCat("register ", bytes, " bytes",
                                   entry.is_device ? " of a device's memory" : ""));
    }
    entry.keys[rail] = *memory;
  }
  return absl::OkStatus();
}

void MemoryCache::Release(const Entry* entry, const void* data, size_t size) {
  std::vector<Range>& users = const_cast<Entry*>(entry)->users;
  const auto found = std::find(users.begin(), users.end(), RangeOf(data, size));
  WEFT_CHECK(found != users.end(), data << " of " << size << " bytes is not held");
  users.erase(found);
  if (users.empty()) DropUnneeded({entry->begin, entry->end});
}

void MemoryCache::Unpin(const Entry* entry) {
  if (--const_cast<Entry*>(entry)->pins == 0) DropUnneeded({entry->begin, entry->end});
}

bool MemoryCache::IsNeeded(const Entry& entry) {
  if (!entry.users.empty() || entry.pins > 0) return true;
  for (auto one = FirstAt(entry.begin); one != entries_.end() && one->first < entry.end; ++one) {
    const std::vector<Range>& users = one->second->users;
    if (std::any_of(users.begin(), users.end(),
                    [&](const Range& user) { return user.Overlaps(entry.used); })) {
      return true;
    }
  }
  return false;
}

// Of those that reach into these pages: the one that was released, and others that waited for it.
void MemoryCache::DropUnneeded(const Range& pages) {
  for (auto one = FirstAt(pages.begin); one != entries_.end() && one->first < pages.end;) {
    const Entry& other = *one->second;
    if (other.end <= pages.begin || IsNeeded(other)) {
      ++one;
      continue;
    }
    Deregister(other, devices_.size());
    device_entries_ -= other.is_device ? 1 : 0;
    one = entries_.erase(one);
  }
}

const MemoryCache::Entry* MemoryCache::Find(const void* data, size_t size) const {
  const Range range = RangeOf(data, size);
  const Entry* waiting = nullptr;
  for (auto one = entries_.upper_bound(range.begin); one != entries_.begin();) {
    --one;
    const Entry& entry = *one->second;
    if (std::any_of(entry.users.begin(), entry.users.end(),
                    [&](const Range& user) { return user.Holds(range); })) {
      if (entry.is_registered) return &entry;
      if (waiting == nullptr) waiting = &entry;
    }
    if (range.begin - entry.begin > longest_) break;
  }
  return waiting;
}

absl::StatusOr<const MemoryCache::Entry*> MemoryCache::FindRegistered(const void* data,
                                                                      size_t size) {
  const Entry* found = Find(data, size);
  if (found == nullptr || found->is_registered) return found;
  WEFT_RETURN_IF_ERROR(RegisterHost(*const_cast<Entry*>(found), /*relaxed=*/true));
  return found;
}

void MemoryCache::Deregister(const Entry& entry, size_t rails) {
  if (!entry.is_registered) return;
  for (size_t rail = 0; rail < rails; ++rail) devices_[rail]->Deregister(entry.keys[rail]);
}

}  // namespace weft::net
