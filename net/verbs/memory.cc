#include "net/verbs/memory.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net {
namespace {

constexpr uintptr_t kPage = 4096;

}  // namespace

MemoryCache::MemoryCache(std::vector<NicDevice*> devices, bool relaxed)
    : devices_(std::move(devices)), relaxed_(relaxed) {}

MemoryCache::~MemoryCache() {
  for (auto& [begin, entry] : entries_) Deregister(*entry, devices_.size());
}

absl::StatusOr<const MemoryCache::Entry*> MemoryCache::Acquire(void* data, size_t size,
                                                               bool relaxed) {
  if (const Entry* found = Find(data, size); found != nullptr && relaxed) {
    auto* entry = const_cast<Entry*>(found);
    ++entry->users;
    return found;
  }
  auto entry = std::make_unique<Entry>();
  const auto at = reinterpret_cast<uintptr_t>(data);
  entry->begin = at / kPage * kPage;
  entry->end = (at + std::max<size_t>(size, 1) + kPage - 1) / kPage * kPage;
  entry->users = 1;
  for (size_t rail = 0; rail < devices_.size(); ++rail) {
    auto memory = devices_[rail]->Register(reinterpret_cast<void*>(entry->begin),  // NOLINT
                                           entry->end - entry->begin, relaxed && relaxed_);
    if (!memory.ok()) {
      Deregister(*entry, rail);
      return Annotate(memory.status(), absl::StrCat("register ", size, " bytes"));
    }
    entry->keys[rail] = *memory;
  }
  longest_ = std::max(longest_, entry->end - entry->begin);
  const Entry* out = entry.get();
  entries_.emplace(out->begin, std::move(entry));
  return out;
}

void MemoryCache::Release(const Entry* entry) {
  auto [from, to] = entries_.equal_range(entry->begin);
  for (auto one = from; one != to; ++one) {
    if (one->second.get() != entry) continue;
    if (--one->second->users > 0) return;
    Deregister(*entry, devices_.size());
    entries_.erase(one);
    return;
  }
}

const MemoryCache::Entry* MemoryCache::Find(const void* data, size_t size) const {
  const auto begin = reinterpret_cast<uintptr_t>(data), end = begin + size;
  for (auto one = entries_.upper_bound(begin); one != entries_.begin();) {
    --one;
    const Entry& entry = *one->second;
    if (entry.end >= end) return &entry;
    if (begin - entry.begin > longest_) break;
  }
  return nullptr;
}

void MemoryCache::Deregister(const Entry& entry, size_t rails) {
  for (size_t rail = 0; rail < rails; ++rail) devices_[rail]->Deregister(entry.keys[rail]);
}

}  // namespace weft::net
