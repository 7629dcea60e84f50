// Frames: what two processes say to each other on a tcp link after the handshake. Each is a header
// of 64 bytes and `length` bytes of payload. 64, so that payloads whose sizes are multiples of 64
// keep every following header and payload aligned in a read buffer. Format: docs/wire-format.md.
//
//   kClearToSend  receiver -> sender   a receive is posted: id, tag, check, its capacity in `total`
//   kData         sender -> receiver   `length` bytes of a message of `total`, from `offset` on
//   kMismatch     sender -> receiver   the send that matched has another check, or is too long
//   kNotice       both ways            up to kNoticeBytesMax bytes for OnNotice
//   kGoodbye      both ways            the link is being closed on purpose; `total`: kData frames
//                                      that another way than this connection has carried
//   kArrived      receiver -> sender   ucx only: `total` kData frames have come
//   kAddress      both ways            ucx: the worker's address, `receive`: the link's number
//                                      there; multipath: net/multipath/udp/datagram.h
//   kAlive        both ways            multipath only: nothing; the other side's kernel answers
//   kTaken        both ways            tcp only: bytes taken on each socket so far, u64 by index
//   kResume       both ways            first on a socket that replaces a lost one, and on no other:
//                                      its epoch in `receive`, the bytes taken so far in `total`
//   kPaths        both ways            tcp only: reports about paths, as text
//                                      (topology/plan/path_reports.h), where there is a plan
#ifndef WEFT_NET_TCP_FRAME_H_
#define WEFT_NET_TCP_FRAME_H_

#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "net/handshake.h"

namespace weft::net {

inline constexpr uint32_t kFrameMagic = 0x72666557;   // "Wefr"
inline constexpr uint64_t kFrameBytesMax = 16 << 20;  // payload; the upper end of tcp.frame_bytes
inline constexpr uint64_t kWorkerAddressBytesMax = 64 << 10;

enum class FrameType : uint8_t {
  kClearToSend = 1,
  kData = 2,
  kMismatch = 3,
  kNotice = 4,
  kGoodbye = 5,
  kAddress = 6,
  kArrived = 7,
  kAlive = 8,
  kTaken = 9,
  kResume = 10,
  kPaths = 11,
};

// Flag of a kData frame: the sender needs its bytes until the receiver acknowledges them (kTaken),
// which the receiver should do once the message is complete.
inline constexpr uint8_t kTellTaken = 1;

// As it lies on the wire, little-endian.
struct FrameHeader {
  uint32_t magic = kFrameMagic;
  uint16_t version = kWireVersion;
  FrameType type{};
  uint8_t flags = 0;     // kTellTaken; else 0
  uint64_t length = 0;   // of the payload that follows
  uint64_t receive = 0;  // the receiver's id of the posted receive; opaque to the sender
  uint64_t tag = 0;
  uint64_t check = 0;
  uint64_t offset = 0;  // a multiple of 64
  uint64_t total = 0;
  uint64_t link = 0;  // the link's number at the other side, where no connection says which it is
};
static_assert(sizeof(FrameHeader) == 64 && std::endian::native == std::endian::little);

// Magic, version, type, and a length that the type allows.
absl::Status CheckFrame(const FrameHeader& header);

// Whether the header describes a valid piece of a message of `total` bytes.
absl::Status CheckPiece(const FrameHeader& header, uint64_t capacity);

}  // namespace weft::net

#endif  // WEFT_NET_TCP_FRAME_H_
