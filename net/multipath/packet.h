// What the multipath protocol says, packet by packet: parsed and written, without I/O.
//
// A packet is a common header, a body by its type, and, for data, a chunk of a message. Bytes on
// the wire: docs/wire-format.md, "multipath". Every length is bounded before it is believed, and a
// checksum covers all of it (CRC-32C), unless both sides have agreed to do without: where the link
// itself has one that is strong enough.
#ifndef WEFT_NET_MULTIPATH_PACKET_H_
#define WEFT_NET_MULTIPATH_PACKET_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "net/paths/path_set.h"

namespace weft::net::multipath {

enum class PacketType : uint8_t {
  kHello = 1,     // sender -> receiver: a new connection
  kWelcome = 2,   // receiver -> sender
  kData = 3,      // a chunk of a message
  kAck = 4,       // receiver -> sender: what arrived, and what may be sent
  kProbe = 5,     // sender -> receiver: asks for an acknowledgement on this path
  kFinish = 6,    // sender -> receiver: everything has been sent and acknowledged
  kFinished = 7,  // receiver -> sender
  kReset = 8,     // receiver -> sender: this connection is not known here
};

enum class ResetReason : uint8_t {
  kUnknown = 1,  // another incarnation: the peer has restarted
  kClosed = 2,   // closed on purpose
};

// One arrival: which packet, how long it was held before it was acknowledged, and what befell it.
struct Echo {
  static constexpr uint8_t kMarked = 1;   // ECN: congestion experienced
  static constexpr uint8_t kTrimmed = 2;  // its payload was cut off: not arrived
  static constexpr uint8_t kRefused = 4;  // its message is refused (too long): not arrived
  uint64_t number = 0;                    // on the wire the low 32 bits
  uint32_t held_ns = 0;                   // below 2^29; longer ones are cut to it
  uint8_t flags = 0;
};

struct Packet {
  PacketType type = PacketType::kHello;
  PathId path = 0;
  // kData, kProbe: 1 + the path of the newest acknowledgement that came through; 0: none has.
  uint16_t heard = 0;
  uint64_t source = 0, target = 0;  // incarnations: of who sends it, of who it is for (0: unknown)

  // kData, kProbe
  uint64_t number = 0;  // of this transmission; no two have the same
  uint64_t floor = 0;   // of numbers below it nothing more is expected
  uint64_t demand = 0;  // bytes of chunks sent so far and still to be sent
  // kData
  uint64_t message = 0;  // counts from 0
  uint64_t offset = 0;   // of the chunk; a multiple of the chunk size
  uint64_t length = 0;   // of the message
  // The sender's to the receiver's owner: the same on every chunk of a message, and nothing to the
  // protocol.
  uint64_t receive = 0;  // which receive it is for
  uint64_t control = 0;  // counts the messages that are no data, from 1; 0: data

  // kAck
  uint64_t base = 0;  // all numbers below it have arrived, or nothing more is expected of them
  std::vector<Echo> echoes;       // at most kEchoesMax
  std::vector<uint64_t> arrived;  // bit i of word w: number base + 64 w + i; at most kWordsMax
  // kAck, kWelcome
  uint64_t messages = 0;  // messages below this may be sent
  uint64_t credit = 0;    // so many bytes of chunks in all, retransmissions included

  // kHello
  uint32_t chunk = 0;  // bytes of a full chunk
  uint16_t paths = 0;
  // kHello, kWelcome
  uint32_t window =
      0;  // kHello: numbers outstanding at most; kWelcome: messages outstanding at most
  // kFinish
  uint64_t total = 0;  // messages
  // kReset
  uint64_t echo = 0;  // the incarnation that the unknown packet was meant for
  ResetReason reason = ResetReason::kUnknown;
};

inline constexpr size_t kCommonBytes = 32;
inline constexpr size_t kDataHeaderBytes = kCommonBytes + 64;
inline constexpr size_t kEchoesMax = 32;
inline constexpr size_t kWordsMax = 64;                 // 4096 numbers
inline constexpr size_t kAckBytes = kCommonBytes + 32;  // without echoes and words, 8 bytes each
inline constexpr size_t kHeaderBytesMax = kAckBytes + kEchoesMax * 8 + kWordsMax * 8;
inline constexpr uint32_t kChunkMin = 64, kChunkMax = 65'536;
inline constexpr uint32_t kNumbersMax = kWordsMax * 64;   // outstanding
inline constexpr uint32_t kMessagesMax = 65'536;          // outstanding
inline constexpr uint64_t kMessageBytesMax = 1ULL << 40;  // of one
inline constexpr uint64_t kUnlimited = 1ULL << 62;        // credit

// Appends what goes before the chunk, which its checksum covers.
void WriteHeader(const Packet& packet, absl::Span<const std::byte> chunk, bool has_checksum,
                 std::string& out);
// Appends the packet to `out`, chunk and all. Aborts on a packet that breaks its own bounds.
void Write(const Packet& packet, absl::Span<const std::byte> chunk, bool has_checksum,
           std::string& out);

struct Parsed {
  Packet packet;
  absl::Span<const std::byte> chunk;  // of kData; within what was parsed
};
// InvalidArgument (or DataLoss, for a wrong checksum) says what is wrong; nothing of such a packet
// may be believed. With `needs_checksum` a packet without one is refused.
absl::StatusOr<Parsed> Parse(absl::Span<const std::byte> bytes, bool needs_checksum);
// Parses a packet whose chunk, if it is kData, does not lie behind its header.
absl::Status ParseParts(absl::Span<const std::byte> header, absl::Span<const std::byte> chunk,
                        bool needs_checksum, Packet& packet);

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_PACKET_H_
