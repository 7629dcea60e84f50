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

// A registration holds the pages that lay at its addresses when it was made. If the process unmaps
// them and maps others there, devices go on at the old ones, and nobody is told. So each user of a
// registration names the bytes that stay mapped until its Release(), and a registration is good for
// those bytes alone: it is found for them, and shared with who wants pages that they lie on. With
// its last user it is deregistered (docs/decisions/0017).
//
// One whose bytes others use as well stays valid until they are released: Find() may have given its
// keys for them, by which a device is still at them.
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
  // Bytes [begin, end).
  struct Range {
    uintptr_t begin = 0, end = 0;
    bool Holds(const Range& other) const { return begin <= other.begin && other.end <= end; }
    bool Overlaps(const Range& other) const { return begin < other.end && other.begin < end; }
    friend bool operator==(const Range&, const Range&) = default;
  };
  struct Entry {
    uintptr_t begin = 0, end = 0;   // what is registered: whole pages, or the DMA-BUF
    std::vector<Range> users;       // what Acquire() was called for and is not released
    Range used;                     // holds all of `users` that there have been
    int pins = 0;                   // Pin()
    bool is_registered = false;     // else it waits for FindRegistered()
    bool is_device = false;         // this processor does not touch it
    std::optional<DmaBuf> dma_buf;  // of device memory; none: by its address
    std::array<NicMemory, kVerbsRailsMax> keys{};  // by rail; of one that is registered
    // By rail: how many of its arrivals (Rail) the device has certainly seen.
    mutable std::array<uint64_t, kVerbsRailsMax> flushed{};
  };

  // The devices outlive the cache.
  MemoryCache(std::vector<NicDevice*> devices, bool relaxed);
  ~MemoryCache();

  // The caller keeps [data, data + size) mapped where it is until Release() of the same. `relaxed`
  // false: never with relaxed ordering, whatever the cache's setting.
  absl::StatusOr<const Entry*> Acquire(void* data, size_t size, bool relaxed = true);
  // The same for memory that devices will hardly be at: it is registered if they are to be.
  absl::StatusOr<const Entry*> AcquireForLater(void* data, size_t size);
  absl::StatusOr<const Entry*> AcquireDevice(const DeviceMemory& memory);
  void Release(const Entry* entry, const void* data, size_t size);
  // It stays valid until Unpin(), though its users may release it.
  void Pin(const Entry* entry) { ++const_cast<Entry*>(entry)->pins; }
  void Unpin(const Entry* entry);
  // Of which a user holds all of [data, data + size), of several that begin alike the newest; one
  // that is registered, if there is one. Null: there is none.
  const Entry* Find(const void* data, size_t size) const;
  // The same, registered.
  absl::StatusOr<const Entry*> FindRegistered(const void* data, size_t size);
  bool IsDevice(const void* data, size_t size) const {
    if (device_entries_ == 0) return false;
    const Entry* entry = Find(data, size);
    return entry != nullptr && entry->is_device;
  }
  size_t registrations() const { return entries_.size(); }  // those that only stay valid as well

 private:
  absl::StatusOr<const Entry*> AcquireHost(const Range& range, bool relaxed, bool for_later);
  // One that holds `pages` and is good for them, by a user; of host memory, or of a device's that
  // goes by its address.
  Entry* FindShareable(const Range& pages, bool is_device) const;
  const Entry* Add(std::unique_ptr<Entry> entry, const Range& user);
  absl::Status RegisterHost(Entry& entry, bool relaxed);
  // Registers it on all devices or on none.
  template <typename Register>
  absl::Status RegisterOnAll(Entry& entry, const Register& one);
  void Deregister(const Entry& entry, size_t rails);
  // The first that may reach into `begin` and what follows.
  auto FirstAt(uintptr_t begin) { return entries_.lower_bound(begin - std::min(begin, longest_)); }
  bool IsNeeded(const Entry& entry);  // by its users or by those of its bytes
  void DropUnneeded(const Range& pages);

  std::vector<NicDevice*> devices_;
  int device_entries_ = 0;  // of device memory
  bool relaxed_;
  // By begin. Those that overlap without one holding the other are all kept.
  std::multimap<uintptr_t, std::unique_ptr<Entry>> entries_;
  uintptr_t longest_ = 0;  // bytes, of any entry yet: bounds the search
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_MEMORY_H_
