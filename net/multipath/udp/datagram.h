// What surrounds a multipath packet in a datagram, and what two ends of a link must know of each
// other to exchange datagrams. Without I/O. Bytes: docs/wire-format.md, "multipath over UDP".
//
// Every datagram begins with an envelope: the number of the link at its receiver, and a keyed check
// (SipHash-2-4) of the envelope and of the packet's header, with a key that only the two ends can
// make: from the job's secret and a nonce of each (MakeKeys). So a datagram of an unauthenticated
// peer, or of an earlier life of a process, costs one hash and changes nothing.
//
// That check does not cover the chunk: a peer that has seen a packet can put another chunk behind
// its header. Where both ends want it (multipath.authenticate_chunks), the envelope of data holds a
// tag of the chunk as well (Poly1305), with a key for this one packet: HChaCha20 under a key of the
// link's direction of the sender's incarnation and the packet's number, which no two packets share.
// The check covers the tag, and so binds it to the header. Nothing is hidden.
//
// Where the carrier's messages cost more than their bytes (queue pairs), one holds several packets,
// each with its envelope, one behind the other at multiples of kPacketAlign; of data, the last
// only.
#ifndef WEFT_NET_MULTIPATH_UDP_DATAGRAM_H_
#define WEFT_NET_MULTIPATH_UDP_DATAGRAM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "net/multipath/packet.h"
#include "net/transport.h"

namespace weft::net::multipath {

// A multiple of 32 such that chunks lie on lines of 64 bytes behind it and a data header.
inline constexpr size_t kEnvelopeBytes = 32;
inline constexpr size_t kBeforeChunk = kEnvelopeBytes + kDataHeaderBytes;
static_assert(kBeforeChunk % 64 == 0);
inline constexpr size_t kPacketAlign = 64;
inline constexpr size_t kDatagramBytesMax = 65'507;  // of UDP over IPv4
inline constexpr size_t kDatagramHeaderMax = kEnvelopeBytes + kHeaderBytesMax;
inline constexpr uint16_t kPathsMax = 64;  // sockets of a transport

// Key of one direction.
using Key = std::array<uint8_t, 16>;
using ChunkKey = std::array<uint8_t, 32>;
using ChunkTag = std::array<uint8_t, 16>;
using LinkNonce = std::array<uint8_t, 16>;

struct Keys {
  Key to_listener{}, to_connector{};
  ChunkKey chunks_to_listener{}, chunks_to_connector{};
};
Keys MakeKeys(const JobSecret& secret, const LinkNonce& connector, const LinkNonce& listener);

// Fills the envelope in front of a packet's header: `bytes` begins with kEnvelopeBytes of room and
// holds all that the check covers. `tag`: of a chunk; zeros: it has none.
void Seal(absl::Span<std::byte> bytes, uint32_t link, const Key& key, const ChunkTag& tag = {});
// Tag of the chunk of a data packet that was parsed, or is to be sealed.
ChunkTag TagOf(const Packet& packet, absl::Span<const std::byte> chunk, const ChunkKey& key);
// Whether a datagram's envelope holds that tag, in a time that does not tell how much of it.
bool HasTag(absl::Span<const std::byte> datagram, const ChunkTag& tag);
// Whether others may follow what Seal() was given: it is no data.
bool MayBeFollowed(absl::Span<const std::byte> sealed);
// Where the next packet begins behind one of so many bytes.
constexpr size_t AlignedPacket(size_t bytes) {
  return (bytes + kPacketAlign - 1) / kPacketAlign * kPacketAlign;
}
// Takes the first packet off a message that holds one or several. Of a message that nobody sealed
// it is any part but an empty one.
absl::Span<const std::byte> TakePacket(absl::Span<const std::byte>* message);
// The link that a datagram says it is for; false: too short to say.
bool LinkOf(absl::Span<const std::byte> datagram, uint32_t* link);
// Whether the maker of a datagram holds the key. A datagram of data is sealed without its chunk.
bool IsSealed(absl::Span<const std::byte> datagram, const Key& key);
// The message of which a datagram's chunk claims to be a part; nothing: no chunk, or too short.
struct ChunkAddress {
  uint64_t message = 0, offset = 0, length = 0;  // as Packet's
};
std::optional<ChunkAddress> AddressOf(absl::Span<const std::byte> datagram);

// What each end tells the other on the connection that the handshake has proven.
struct Address {
  uint32_t link = 0;  // the number that datagrams to this end carry
  LinkNonce nonce{};
  uint32_t chunk_max = 0;       // bytes; what its interface carries in a datagram,
  bool chunk_is_set = false;    // or what it was told to: then on one host as well
  uint64_t buffer_bytes = 0;    // of one socket
  bool has_checksum = true;     // wants one on every packet,
  bool trusts_host = false;     // but of those that never leave the host
  std::string host;             // without a port, as SocketAddress prints it: "10.0.0.1:0"
  std::vector<uint16_t> ports;  // [path]
  std::string queue_pairs;      // of paths that are some; see net/verbs/pair_paths.h

  std::string Encode() const;
  static absl::StatusOr<Address> Decode(absl::string_view bytes);
};
inline constexpr size_t kAddressHostBytesMax = 128, kAddressPairBytes = 32;

}  // namespace weft::net::multipath

#endif  // WEFT_NET_MULTIPATH_UDP_DATAGRAM_H_
