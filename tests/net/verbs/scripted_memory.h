// Memory that is registered with the devices of a scripted fabric, and how what they write to it is
// seen. Devices are at the pages that were there when it was registered, whatever is mapped at
// their addresses later; so far as pages can be held: those of shared mappings. A DMA-BUF's bytes
// are kept back until the device that wrote them has read of it.
#ifndef WEFT_TESTS_NET_VERBS_SCRIPTED_MEMORY_H_
#define WEFT_TESTS_NET_VERBS_SCRIPTED_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "net/verbs/nic.h"

namespace weft::net::scripted {

struct DeviceState;

// By key. Not thread-safe.
class MemoryTable {
 public:
  NicMemory Add(const DeviceState* device, void* data, size_t size, bool readable);
  // Of a DMA-BUF: `mapped` is the memory itself, which Remove() unmaps.
  NicMemory AddDmaBuf(const DeviceState* device, void* data, size_t size, bool readable,
                      std::byte* mapped);
  void Remove(uint32_t key);
  bool Covers(uint32_t key, const DeviceState* device, uintptr_t begin, size_t size) const;
  std::byte* At(uint32_t key, uintptr_t address);
  void Write(uint32_t key, uintptr_t address, const std::byte* from, size_t bytes);
  // By `device`, the far one. What it has written anywhere arrives before what it reads.
  NicStatus Read(const NicWrite& read, const DeviceState* device);

  size_t size() const { return registered_.size(); }
  size_t unseen() const;  // writes to DMA-BUFs

 private:
  struct Registered {
    const DeviceState* device = nullptr;
    uintptr_t begin = 0, end = 0;
    bool readable = false;
    // The pages themselves, mapped where the test does not look; null: they are not held.
    std::byte* mapped = nullptr;
    bool is_dma_buf = false;
    // Bytes on their way to a DMA-BUF.
    std::vector<std::pair<size_t, std::vector<std::byte>>> unseen;
  };
  NicMemory Insert(Registered registered);

  std::map<uint32_t, Registered> registered_;
  uint32_t next_key_ = 0x1000;
};

}  // namespace weft::net::scripted

#endif  // WEFT_TESTS_NET_VERBS_SCRIPTED_MEMORY_H_
