#include "net/eager.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace weft::net {

// ---- The sending end

void EagerSends::Sent(uint64_t tag) {
  tags_[next_ % EagerRecord::kWindow] = tag;
  expecting_ |= BitOf(next_);
  ++next_;
}

absl::Status EagerSends::NoteMatched(const EagerRecord& matched) {
  const uint64_t room = next_ - std::min(next_, matched.base);
  const bool beyond = room < EagerRecord::kWindow && matched.bits >> room != 0;
  if (matched.base > next_ || matched.base < matched_.base || beyond) {
    return absl::InvalidArgumentError(absl::StrCat(
        "it says that it has matched eager messages below ", matched.base, " and ",
        absl::Hex(matched.bits), " above, of ", next_, "; before, below ", matched_.base));
  }
  for (uint64_t number = matched_.base; number < next_ && expecting_ != 0; ++number) {
    if (matched.Has(number)) expecting_ &= ~BitOf(number);
  }
  matched_ = matched;
  return absl::OkStatus();
}

bool EagerSends::TakesClearToSend(uint64_t tag) {
  for (uint64_t number = matched_.base; number < next_ && expecting_ != 0; ++number) {
    if ((expecting_ & BitOf(number)) == 0) continue;
    if (tags_[number % EagerRecord::kWindow] != tag) continue;
    expecting_ &= ~BitOf(number);
    return true;
  }
  return false;
}

// ---- The receiving end

void EagerReceives::AddPosted(uint64_t tag, uint64_t id) {
  const uint32_t slot = posted_.Acquire();
  posted_[slot] = {tag, id, kNoSlot};
  Bucket& bucket = BucketOf(tag);
  (bucket.first == kNoSlot ? bucket.first : posted_[bucket.last].next) = slot;
  bucket.last = slot;
  const auto index = static_cast<uint32_t>(id);
  if (index >= is_posted_.size()) is_posted_.resize(index + 1);
  is_posted_[index] = 1;
}

template <typename Fits>
std::optional<uint64_t> EagerReceives::Take(uint64_t tag, const Fits& fits) {
  Bucket& bucket = BucketOf(tag);
  uint32_t before = kNoSlot;
  for (uint32_t slot = bucket.first; slot != kNoSlot; before = slot, slot = posted_[slot].next) {
    if (!fits(posted_[slot])) continue;
    (before == kNoSlot ? bucket.first : posted_[before].next) = posted_[slot].next;
    if (bucket.last == slot) bucket.last = before;
    is_posted_[static_cast<uint32_t>(posted_[slot].id)] = 0;
    posted_.Release(slot);
    return posted_[slot].id;
  }
  return std::nullopt;
}

void EagerReceives::RemovePosted(uint64_t tag, uint64_t id) {
  const auto index = static_cast<uint32_t>(id);
  if (index >= is_posted_.size() || is_posted_[index] == 0) return;
  Take(tag, [&](const Posted& one) { return one.id == id; });
}

std::optional<uint64_t> EagerReceives::TakePosted(uint64_t tag) {
  return Take(tag, [&](const Posted& one) { return one.tag == tag; });
}

absl::Status EagerReceives::NoteArrived(uint64_t* number) {
  *number = next_++;
  if (*number < matched_.base + EagerRecord::kWindow) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("eager message ", *number,
                                                 " came while only those below ", matched_.base,
                                                 " had all been matched"));
}

void EagerReceives::NoteMatched(uint64_t number) {
  matched_.Add(number);
  ++untold_;
}

void EagerReceives::Keep(uint64_t number, uint64_t tag, uint64_t check,
                         absl::Span<const std::byte> bytes) {
  kept_.push_back({number, tag, check, {bytes.begin(), bytes.end()}});
}

std::optional<EagerReceives::Message> EagerReceives::TakeKept(uint64_t tag) {
  const auto found =
      std::find_if(kept_.begin(), kept_.end(), [&](const Message& one) { return one.tag == tag; });
  if (found == kept_.end()) return std::nullopt;
  Message out = std::move(*found);
  kept_.erase(found);
  return out;
}

void EagerReceives::Clear() {
  posted_ = {};
  is_posted_.clear();
  buckets_ = {};
  kept_.clear();
}

}  // namespace weft::net
