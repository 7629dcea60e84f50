#include "net/verbs/entry_ring.h"

#include <utility>

#include "base/status.h"

namespace weft::net {

absl::Status EntryRing::Open(bool leads) {
  (leads ? out_slot_ : in_slot_) = SlotBytes(rails_.options().eager_max);
  const size_t bytes = Bytes();
  WEFT_ASSIGN_OR_RETURN(memory_, MapOwnPages(bytes));
  WEFT_ASSIGN_OR_RETURN(keys_, rails_.memory().Acquire(memory_.get(), bytes, false));
  return absl::OkStatus();
}

void EntryRing::Close() {
  if (keys_ != nullptr) {
    rails_.memory().Release(std::exchange(keys_, nullptr), memory_.get(), Bytes());
  }
  memory_.reset();
}

void EntryRing::Describe(Control* hello) const {
  hello->ring = reinterpret_cast<uintptr_t>(memory_.get());
  for (size_t rail = 0; rail < static_cast<size_t>(rails_.size()); ++rail) {
    hello->ring_keys[rail] = keys_->keys[rail].remote_key;
  }
}

void EntryRing::SetRemote(const Control& hello, bool leads) {
  remote_address_ = hello.ring;
  remote_keys_ = hello.ring_keys;
  if (leads) remote_slot_ = SlotBytes(hello.eager_max);
}

EntryHeader* EntryRing::Image(uint64_t number) {
  std::byte* images = memory_.get() + kRingSlots * in_slot_;
  return reinterpret_cast<EntryHeader*>(images + number % kRingSlots * out_slot_);
}

}  // namespace weft::net
