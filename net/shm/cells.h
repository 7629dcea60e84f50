// What stands in a cell's body: the words of the shm protocol. docs/wire-format.md has the tables.
// Native byte order: both sides are on one host.
#ifndef WEFT_NET_SHM_CELLS_H_
#define WEFT_NET_SHM_CELLS_H_

#include <cstddef>
#include <cstdint>

#include "net/eager.h"
#include "net/shm/ring.h"

namespace weft::net::shm {

enum class CellKind : uint8_t {
  kData = 1,         // forward: a piece of a message
  kRefuse = 2,       // forward: the send that matched a receive cannot be
  kNotice = 3,       // both ways: a fragment of a notice
  kClearToSend = 4,  // backward: a receive is posted
  kOffer = 5,        // forward: where a message lies in the sender's memory
  kAnswer = 6,       // backward: what became of an offer
  kUnshare = 7,      // forward: memory that was shown has gone
  kEager = 8,        // forward: a whole small message, sent before its receive was known
  kMatched = 9,      // backward: which eager messages have met their receives
  kDiffers = 10,     // backward: the receive that an eager message met cannot take it
};

enum class RefuseReason : uint8_t { kCheckDiffers = 1, kTooLong = 2 };

inline constexpr uint64_t kEagerBytesMax = 64 << 10;  // the upper end of shm.eager_max

struct DataCell {
  static constexpr size_t kInlineMax = kCellBodyBytes - 32;
  uint8_t kind = static_cast<uint8_t>(CellKind::kData);
  uint8_t is_inline = 0;  // 1: the bytes follow here; 0: `position` in the arena
  uint16_t zero = 0;
  uint32_t length = 0;
  uint64_t receive_id = 0;  // from the clear-to-send
  uint64_t offset = 0;      // of this piece in the message
  uint64_t total = 0;       // of the message
  union {
    uint64_t position;
    std::byte bytes[kInlineMax];
  };
};
static_assert(sizeof(DataCell) == kCellBodyBytes && offsetof(DataCell, bytes) == 32);

struct EagerCell {
  static constexpr size_t kInlineMax = kCellBodyBytes - 32;
  uint8_t kind = static_cast<uint8_t>(CellKind::kEager);
  uint8_t is_inline = 0;  // as of DataCell
  uint16_t zero = 0;
  uint32_t length = 0;
  uint64_t number = 0;  // of the link's eager messages, from 0
  uint64_t tag = 0;
  uint64_t check = 0;
  union {
    uint64_t position;
    std::byte bytes[kInlineMax];
  };
};
static_assert(sizeof(EagerCell) == kCellBodyBytes && offsetof(EagerCell, bytes) == 32);

struct RefuseCell {
  uint8_t kind = static_cast<uint8_t>(CellKind::kRefuse);
  uint8_t reason = 0;
  uint8_t zero[6] = {};
  uint64_t receive_id = 0;
  uint64_t sender_value = 0;  // the sender's check, or the length of its message
};

struct ClearToSendCell {
  uint8_t kind = static_cast<uint8_t>(CellKind::kClearToSend);
  uint8_t may_read = 0;  // 1: the message may be offered from any memory of the sender
  uint8_t may_map = 0;   // 1: from memory that the sender shows
  uint8_t zero[5] = {};
  uint64_t receive_id = 0;
  uint64_t tag = 0;
  uint64_t check = 0;
  uint64_t capacity = 0;
  EagerRecord matched;  // eager messages that have met their receives
};

struct MatchedCell {
  uint8_t kind = static_cast<uint8_t>(CellKind::kMatched);
  uint8_t zero[7] = {};
  EagerRecord matched;  // as of ClearToSendCell
};

struct DiffersCell {
  uint8_t kind = static_cast<uint8_t>(CellKind::kDiffers);
  uint8_t reason = 0;
  uint8_t zero[6] = {};
  uint64_t sender_value = 0;    // the message's check, or its length
  uint64_t receiver_value = 0;  // the receive's check, or its capacity
};

struct OfferCell {
  uint8_t kind = static_cast<uint8_t>(CellKind::kOffer);
  uint8_t urgency = 0;  // of the message: the more urgent is read first
  uint8_t zero[2] = {};
  uint32_t share = 0;  // the number of the memory that was shown; 0: none, it is to be read
  uint64_t receive_id = 0;
  uint64_t offer_id = 0;
  uint64_t address = 0;  // in the sender's address space, or in the memory of that number
  uint64_t total = 0;
};

struct UnshareCell {
  uint8_t kind = static_cast<uint8_t>(CellKind::kUnshare);
  uint8_t zero[3] = {};
  uint32_t share = 0;
};

struct AnswerCell {
  uint8_t kind = static_cast<uint8_t>(CellKind::kAnswer);
  uint8_t was_read = 0;  // 0: cannot be; to be sent in pieces
  uint8_t zero[6] = {};
  uint64_t offer_id = 0;
};

struct NoticeCell {
  static constexpr size_t kBytesMax = kCellBodyBytes - 8;
  uint8_t kind = static_cast<uint8_t>(CellKind::kNotice);
  uint8_t length = 0;   // of this fragment
  uint16_t offset = 0;  // of it in the notice
  uint16_t total = 0;
  uint16_t zero = 0;
  std::byte bytes[kBytesMax];
};
static_assert(sizeof(NoticeCell) == kCellBodyBytes);

}  // namespace weft::net::shm

#endif  // WEFT_NET_SHM_CELLS_H_
