// Registered memory of a transport: each range is registered once, on all rails, and shared.
#ifndef WEFT_NET_VERBS_MEMORY_H_
#define WEFT_NET_VERBS_MEMORY_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "net/transport.h"
#include "net/verbs/nic.h"
#include "net/verbs/options.h"

namespace weft::net {

// Registrations are of whole pages and counted: what lies within one that exists costs nothing, and
// the last Release() deregisters. Nothing is found longer: without a hook into the allocator, pages
// that were given back and mapped anew would still be written at their old place. But one that
// shares pages with another stays valid until that is released as well: Find() may have given its
// keys for memory of the other, which a device is still at.
//
// A DMA-BUF is registered as it is and shared with nothing but the same stretch of itself: another
// one may appear at the same address, and descriptors are used again.
class MemoryCache {
 public:
  // What tells DMA-BUFs apart, whichever descriptors they have: a registration keeps its file.
  struct DmaBuf {
    uint64_t file_system = 0, file = 0, offset = 0;
    friend bool operator==(const DmaBuf&, const DmaBuf&) = default;
  };
  struct Entry {
    uintptr_t begin = 0, end = 0;
    int users = 0;
    bool is_device = false;                        // this processor does not touch it
    std::optional<DmaBuf> dma_buf;                 // of device memory; none: by its address
    std::array<NicMemory, kVerbsRailsMax> keys{};  // by rail
    // By rail: how many of its arrivals (Rail) the device has certainly seen.
    mutable std::array<uint64_t, kVerbsRailsMax> flushed{};
  };

  // The devices outlive the cache.
  MemoryCache(std::vector<NicDevice*> devices, bool relaxed);
  ~MemoryCache();

  // `relaxed` false: never with relaxed ordering, whatever the cache's setting.
  absl::StatusOr<const Entry*> Acquire(void* data, size_t size, bool relaxed = true);
  absl::StatusOr<const Entry*> AcquireDevice(const DeviceMemory& memory);
  void AddUser(const Entry* entry) { ++const_cast<Entry*>(entry)->users; }
  void Release(const Entry* entry);
  // The registration that holds all of [data, data + size), of several that begin alike the newest;
  // null: there is none.
  const Entry* Find(const void* data, size_t size) const;
  bool IsDevice(const void* data, size_t size) const {
    if (device_entries_ == 0) return false;
    const Entry* entry = Find(data, size);
    return entry != nullptr && entry->is_device;
  }
  size_t registrations() const { return entries_.size(); }  // those that only stay valid as well

 private:
  // Registers it on all devices or on none.
  template <typename Register>
  absl::StatusOr<const Entry*> Add(std::unique_ptr<Entry> entry, const Register& one);
  void Deregister(const Entry& entry, size_t rails);
  // The first that may reach into `begin` and what follows.
  auto FirstAt(uintptr_t begin) { return entries_.lower_bound(begin - std::min(begin, longest_)); }
  bool IsShared(const Entry& entry);  // with one that has users

  std::vector<NicDevice*> devices_;
  int device_entries_ = 0;  // of device memory
  bool relaxed_;
  // By begin. Those that overlap without one holding the other are all kept.
  std::multimap<uintptr_t, std::unique_ptr<Entry>> entries_;
  uintptr_t longest_ = 0;  // bytes, of any entry yet: bounds the search
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_MEMORY_H_
