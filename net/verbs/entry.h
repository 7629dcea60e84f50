// The protocol of a verbs link, in two layers (docs/wire-format.md):
//
// Entries go by RDMA. Each side has a ring of kRingSlots slots, into which the other writes entries
// with immediate: a header of 128 bytes, and small payloads behind it. Entry n lies in slot n
// modulo kRingSlots, the immediate is n's low 32 bits; it may come on any queue pair and in any
// order. The payload of larger data is written to its place before, on the same queue pair. A slot
// is free again once `taken` of an entry the other way has passed it. An entry names the queue pair
// that it was last posted on, so that one which came without a completion is found.
//
//   kClearToSend  receiver -> sender   a receive is posted, and where its bytes go
//   kData         sender -> receiver   a piece of a message
//   kStaging      receiver -> sender   memory for pieces that will be reduced: `total` slots of
//                                      `length` bytes at `address`, all free
//   kRelease      receiver -> sender   the staging slots in the payload, a byte each, are free
//   kTaken        both ways            nothing but `taken`
//   kEager        sender -> receiver   a whole small message, sent before its receive is known
//   kMismatch     sender -> receiver   the send that matched has another check, or is too long
//   kAgain        receiver -> sender   a part of an eager message, given back: send it to
//                                      `address`, which this processor cannot reach
//   kOrdinary     both ways            no eager messages any more, and no clear-to-send held back
//
// Clear-to-sends and kTaken also say which eager messages have been matched (eager.h). Of an entry
// of kind kEager only the first 64 bytes are there; its payload is behind them.
//
// Controls go by the tcp connection that the handshake opened, as payload of kAddress frames. They
// make and replace queue pairs. The sending end of the link leads:
//
//   kHello   both ways           who I am, my ring                          once, first
//   kOffer   leader -> follower  lane, epoch: a queue pair of mine, INIT
//   kAnswer  follower -> leader  the follower's for it, RTS
//   kRefuse  follower -> leader  it cannot; `text` says why
//   kReady   leader -> follower  RTS here too: use it
//   kDown    leader -> follower  this lane's queue pair is gone here; what arrived here: `record`
//   kDowned  follower -> leader  gone here as well; what arrived here: `record`
//   kBroken  follower -> leader  this lane's queue pair failed here; `text` says why
//   kAsk     both ways           what has arrived?      kTell  the answer to it
//   kGiveUp  both ways           the link ends; `text` says why
#ifndef WEFT_NET_VERBS_ENTRY_H_
#define WEFT_NET_VERBS_ENTRY_H_

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "net/verbs/options.h"
#include "net/verbs/record.h"

namespace weft::net {

inline constexpr uint16_t kVerbsVersion = 6;
inline constexpr uint32_t kEntryMagic = 0x65566657;    // "WfVe"
inline constexpr uint32_t kControlMagic = 0x63566657;  // "WfVc"
inline constexpr size_t kEntryBytes = 256;  // a slot; more where eager messages come (SlotBytes)
inline constexpr size_t kEntryPayloadMax = 128;  // but for kEager, and for data of small messages
inline constexpr size_t kEagerHeaderBytes = 64;
inline constexpr size_t kEagerBytesMax = 64 << 10;  // the upper end of verbs.eager_max

enum class EntryKind : uint8_t {
  kClearToSend = 1,
  kData = 2,
  kStaging = 3,
  kRelease = 4,
  kTaken = 5,
  kEager = 6,
  kMismatch = 7,
  kAgain = 8,
  kOrdinary = 9,
};

enum class DataPlace : uint8_t { kTarget = 0, kEntry = 1, kStagingSlot = 2 };

// As it lies in the ring, little-endian.
struct EntryHeader {
  uint32_t magic = kEntryMagic;
  EntryKind kind{};
  DataPlace place{};  // clear-to-send: kTarget: of all pieces; kEntry: of small ones it may be that
  uint8_t reduce = 0;        // clear-to-send: pieces go to staging slots
  uint8_t staging_slot = 0;  // data
  uint64_t number = 0;
  uint64_t taken = 0;  // entries the other way that have been taken: all below this
  uint64_t link = 0;   // the token that its hello gave
  uint32_t epoch = 0;  // of the lane
  uint8_t lane = 0;
  std::array<uint8_t, 3> zero{};
  uint64_t tag = 0, check = 0;  // as in tcp's frames
  uint64_t length = 0;          // of data; of the payload, for kRelease, kEager and kAgain;
                                // clear-to-send, taken: eager messages matched above `offset`
  // What follows is not there in kEager.
  uint64_t receive = 0;            // as in tcp's frames, and so are these:
  uint64_t offset = 0, total = 0;  // clear-to-send, taken: eager messages matched: all below offset
  uint64_t address = 0;
  std::array<uint32_t, kVerbsRailsMax> keys{};  // by the receiver's rails
};
static_assert(sizeof(EntryHeader) == 128 && std::endian::native == std::endian::little);
static_assert(offsetof(EntryHeader, receive) == kEagerHeaderBytes);
static_assert(sizeof(EntryHeader) + kEntryPayloadMax == kEntryBytes);

// Before the payload.
inline size_t HeaderBytes(EntryKind kind) {
  return kind == EntryKind::kEager ? kEagerHeaderBytes : sizeof(EntryHeader);
}
// Bytes of a slot, in whole cache lines, in a ring of small messages, of up to `eager_max` bytes.
inline size_t SlotBytes(size_t eager_max) {
  const size_t wanted = (sizeof(EntryHeader) + eager_max + 63) / 64 * 64;
  return wanted > kEntryBytes ? wanted : kEntryBytes;
}

enum class ControlKind : uint8_t {
  kHello = 1,
  kOffer = 2,
  kAnswer = 3,
  kRefuse = 4,
  kReady = 5,
  kDown = 6,
  kDowned = 7,
  kBroken = 8,
  kAsk = 9,
  kTell = 10,
  kGiveUp = 11,
  kDiffers = 12,
  kPaths = 13,
};

inline constexpr size_t kControlTextMax = 2048;

// As it lies on the wire, little-endian; then the text.
struct Control {
  uint32_t magic = kControlMagic;
  uint16_t version = kVerbsVersion;
  ControlKind kind{};
  uint8_t lane = 0;
  uint32_t epoch = 0;  // of the lane: counts its queue pairs from 1; of ask and tell: their number
  // hello
  uint8_t lanes = 0;  // wanted
  uint8_t rails = 0;
  // offer, answer
  uint8_t rail = 0;  // of the side that says it
  uint8_t ethernet = 0;
  uint64_t ring = 0;  // hello: address
  std::array<uint32_t, kVerbsRailsMax> ring_keys{};
  uint64_t link = 0;  // hello: the token that entries for this side carry
  uint32_t queue_pair = 0, psn = 0;
  uint32_t mtu = 0;
  uint16_t lid = 0, source_port = 0;
  std::array<uint8_t, 16> gid{};
  ArrivalRecord record;    // down, downed, tell
  uint32_t eager_max = 0;  // hello: bytes of an eager message; the smaller of both sides'
  uint32_t zero = 0;
};
static_assert(sizeof(Control) == 144);

std::string EncodeControl(const Control& control, absl::string_view text);
// Sizes, magic, version, kind, and that lane, rail and counts are in range.
absl::StatusOr<Control> DecodeControl(absl::string_view bytes, std::string* text);

// Terms that both sides must share, sent in the handshake's parameters, so that a peer that differs
// is turned away at once with both values.
struct VerbsTerms {
  uint16_t version = kVerbsVersion;
  uint16_t ring_slots = kRingSlots;
  bool ethernet = false;
  uint8_t roce_version = 2;  // of the GIDs chosen; 0 on InfiniBand
  bool ipv6 = false;
  std::string device;  // for messages
  std::string Encode() const;
  static absl::StatusOr<VerbsTerms> Decode(absl::string_view bytes);
  // What does not fit, in words of this side's and the other's values.
  absl::Status Check(const VerbsTerms& other) const;
};

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_ENTRY_H_
