// Registered memory of a transport: each stretch once, on all rails, however often it is asked for.
#ifndef WEFT_NET_VERBS_MEMORY_H_
#define WEFT_NET_VERBS_MEMORY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "net/verbs/nic.h"
#include "net/verbs/options.h"

namespace weft::net {

// Registrations are of whole pages and counted: what lies within one that exists costs nothing, and
// the last Release() deregisters. Nothing is kept longer: without a hook into the allocator, pages
// that were given back and mapped anew would still be written at their old place.
class MemoryCache {
 public:
  struct Entry {
    uintptr_t begin = 0, end = 0;
    int users = 0;
    std::array<NicMemory, kVerbsRailsMax> keys{};  // by rail
  };

  // The devices outlive the cache.
  MemoryCache(std::vector<NicDevice*> devices, bool relaxed);
  ~MemoryCache();

  // `relaxed` false: never with relaxed ordering, whatever the cache's setting.
  absl::StatusOr<const Entry*> Acquire(void* data, size_t size, bool relaxed = true);
  void Release(const Entry* entry);
  // The registration that holds all of [data, data + size); null: there is none.
  const Entry* Find(const void* data, size_t size) const;
  size_t registrations() const { return entries_.size(); }

 private:
  void Deregister(const Entry& entry, size_t rails);

  std::vector<NicDevice*> devices_;
  bool relaxed_;
  // By begin. Those that overlap without one holding the other are all kept.
  std::multimap<uintptr_t, std::unique_ptr<Entry>> entries_;
  uintptr_t longest_ = 0;  // bytes, of any entry yet: bounds the search
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_MEMORY_H_
