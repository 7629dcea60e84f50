// The memory of a link's entries (entry.h), registered with all rails: kRingSlots slots that the
// other side writes into, and as many images of the entries that go into the other side's ring.
// Not thread-safe.
#ifndef WEFT_NET_VERBS_ENTRY_RING_H_
#define WEFT_NET_VERBS_ENTRY_RING_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "net/verbs/entry.h"
#include "net/verbs/memory.h"
#include "net/verbs/own_pages.h"
#include "net/verbs/rails.h"

namespace weft::net {

class EntryRing {
 public:
  explicit EntryRing(Rails& rails) : rails_(rails) {}
  ~EntryRing() { Close(); }
  EntryRing(const EntryRing&) = delete;
  EntryRing& operator=(const EntryRing&) = delete;

  // `leads`: small messages go out, and make the images large; else they come in, and make the
  // slots large.
  absl::Status Open(bool leads);
  void Close();
  bool is_open() const { return memory_ != nullptr; }

  // Where the ring lies and its keys, for the other side.
  void Describe(Control* hello) const;
  // The other side's ring, as its hello describes it.
  void SetRemote(const Control& hello, bool leads);

  // Entry `number` as it goes out, with its payload behind the header.
  EntryHeader* Image(uint64_t number);
  uint32_t ImageKey(size_t rail) const { return keys_->keys[rail].local_key; }
  // Where the other side's entry `number` lies.
  const std::byte* Arrived(uint64_t number) const {
    return memory_.get() + number % kRingSlots * in_slot_;
  }

  // Where entry `number` goes in the other side's memory, and the key of one of its rails.
  uint64_t RemoteSlot(uint64_t number) const {
    return remote_address_ + number % kRingSlots * remote_slot_;
  }
  uint32_t RemoteKey(size_t rail) const { return remote_keys_[rail]; }

 private:
  size_t Bytes() const { return kRingSlots * (in_slot_ + out_slot_); }

  Rails& rails_;
  OwnPages memory_;  // the slots, and behind them the images
  size_t in_slot_ = kEntryBytes, out_slot_ = kEntryBytes, remote_slot_ = kEntryBytes;  // bytes
  const MemoryCache::Entry* keys_ = nullptr;
  uint64_t remote_address_ = 0;
  std::array<uint32_t, kVerbsRailsMax> remote_keys_{};
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_ENTRY_RING_H_
