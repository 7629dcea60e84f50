// Eager messages: small ones that a link sends before it knows of their receive. This file matches
// sends and receives, for shm and verbs; verbs/data_path.h and shm/links.h move the bytes.
//
// A receive is matched with a send of the same tag, first posted, first matched, whichever way they
// meet: at the sender, where a clear-to-send has come, or at the receiver, where an eager message
// has. A send goes eagerly only when no earlier one of its tag waits, and no clear-to-send of its
// tag is there; so the receive that it is for is the first that the receiver knows of. That one's
// clear-to-send may be on its way all the same: the sender expects it and drops it. It may also
// never come, where the message was there first or it was held back; then what the receiver sends
// next says that the message has been matched. Both are exact, as clear-to-sends come in the order
// of receives, and each says which messages had been matched when it was written.
#ifndef WEFT_NET_EAGER_H_
#define WEFT_NET_EAGER_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "net/tcp/slot_pool.h"

namespace weft::net {

// Which eager messages of a link have been matched, by their order: all below `base`, and some
// above, bit i: base + i. No more than a window of them is sent beyond `base`, which bounds what
// waits at the receiver.
struct EagerRecord {
  static constexpr uint64_t kWindow = 64;
  uint64_t base = 0, bits = 0;
  bool Has(uint64_t number) const {
    return number < base || (number < base + kWindow && (bits >> (number - base) & 1) != 0);
  }
  void Add(uint64_t number) {
    bits |= uint64_t{1} << (number - base);
    while ((bits & 1) != 0) bits >>= 1, ++base;
  }
};

// The sending end.
class EagerSends {
 public:
  uint64_t next() const { return next_; }  // number of the message that goes next
  bool HasCredit() const { return next_ < matched_.base + EagerRecord::kWindow; }
  void Sent(uint64_t tag);
  // What the receiver has said; an error when that cannot be.
  absl::Status NoteMatched(const EagerRecord& matched);
  // A clear-to-send of this tag has come: true when it is an eager message's, which needs none.
  bool TakesClearToSend(uint64_t tag);

 private:
  static constexpr uint64_t BitOf(uint64_t number) {
    return uint64_t{1} << (number % EagerRecord::kWindow);
  }
  EagerRecord matched_;
  uint64_t next_ = 0;
  uint64_t expecting_ = 0;  // neither matched, as far as is known, nor their clear-to-send come
  std::array<uint64_t, EagerRecord::kWindow> tags_{};
};

// The receiving end.
class EagerReceives {
 public:
  struct Message {
    uint64_t number = 0;  // in the order of sending
    uint64_t tag = 0, check = 0;
    std::vector<std::byte> bytes;
  };

  // A receive, by its id as in tcp's frames, that nothing has been matched with.
  void AddPosted(uint64_t tag, uint64_t id);
  void RemovePosted(uint64_t tag, uint64_t id);  // if it is there; costs nothing if it is not
  std::optional<uint64_t> TakePosted(uint64_t tag);

  // The next message has come: its number, or an error where there are more than may be.
  absl::Status NoteArrived(uint64_t* number);
  void NoteMatched(uint64_t number);

  // Messages that no receive was posted for wait in the order of arrival.
  void Keep(uint64_t number, uint64_t tag, uint64_t check, absl::Span<const std::byte> bytes);
  std::optional<Message> TakeKept(uint64_t tag);
  bool keeps() const { return !kept_.empty(); }
  // Drops the kept messages of whose tag `wants(tag)` is false; the sender is told that they are
  // matched.
  template <typename Wants>
  void DropKept(const Wants& wants) {
    std::erase_if(kept_, [&](const Message& one) {
      if (wants(one.tag)) return false;
      NoteMatched(one.number);
      return true;
    });
  }

  // For the sender, who waits for it when many are untold.
  EagerRecord Tell() {
    untold_ = 0;
    return matched_;
  }
  bool HasUnreported() const { return untold_ >= EagerRecord::kWindow / 4; }
  void Clear();

 private:
  // Receives by tag, each bucket in the order of posting.
  static constexpr size_t kBuckets = 64;
  struct Posted {
    uint64_t tag = 0, id = 0;
    uint32_t next = kNoSlot;
  };
  struct Bucket {
    uint32_t first = kNoSlot, last = kNoSlot;
  };
  Bucket& BucketOf(uint64_t tag) { return buckets_[(tag ^ tag >> 16 ^ tag >> 32) % kBuckets]; }
  template <typename Fits>
  std::optional<uint64_t> Take(uint64_t tag, const Fits& fits);

  SlotPool<Posted> posted_;
  std::vector<uint8_t> is_posted_;  // by the low half of the id
  std::array<Bucket, kBuckets> buckets_;
  std::deque<Message> kept_;
  EagerRecord matched_;
  uint64_t next_ = 0, untold_ = 0;
};

}  // namespace weft::net

#endif  // WEFT_NET_EAGER_H_
