#include "net/multipath/udp/datagram.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::net::multipath {
namespace {

// The envelope: check (8), link (4), bytes of all of it or, of data, 0 (4), tag or zero (16).
constexpr size_t kCheckBytes = crypto_shorthash_BYTES;
constexpr size_t kBytesAt = kCheckBytes + 4, kTagAt = kBytesAt + 4;
static_assert(kTagAt + sizeof(ChunkTag) == kEnvelopeBytes);
static_assert(sizeof(ChunkTag) == crypto_onetimeauth_BYTES);
static_assert(sizeof(ChunkKey) == crypto_core_hchacha20_KEYBYTES);
static_assert(crypto_core_hchacha20_OUTPUTBYTES == crypto_onetimeauth_KEYBYTES);
static_assert(kCheckBytes == 8 && sizeof(Key) == crypto_shorthash_KEYBYTES);
constexpr size_t kTypeAt = kEnvelopeBytes + 3;                         // within the packet's header
constexpr size_t kMessageAt = kEnvelopeBytes + kCommonBytes + 24;      // then offset, length
constexpr uint8_t kHasChecksum = 1, kTrustsHost = 2, kChunkIsSet = 4;  // of an address
constexpr char kPurpose[] = "weft multipath link 1";
constexpr char kChunkPurpose[] = "weft multipath chunk 1";

bool IsData(absl::Span<const std::byte> datagram) {
  return static_cast<PacketType>(datagram[kTypeAt]) == PacketType::kData;
}

// What is checked: all but the check itself and a chunk.
absl::Span<const std::byte> Covered(absl::Span<const std::byte> datagram) {
  size_t end = IsData(datagram) ? std::min(datagram.size(), kBeforeChunk) : datagram.size();
  return datagram.subspan(kCheckBytes, end - kCheckBytes);
}

std::array<uint8_t, kCheckBytes> CheckOf(absl::Span<const std::byte> datagram, const Key& key) {
  std::array<uint8_t, kCheckBytes> check;
  absl::Span<const std::byte> covered = Covered(datagram);
  crypto_shorthash(check.data(), reinterpret_cast<const unsigned char*>(covered.data()),
                   covered.size(), key.data());
  return check;
}

template <typename T>
void Put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
bool Take(absl::string_view& bytes, T* value) {
  if (bytes.size() < sizeof(T)) return false;
  std::memcpy(value, bytes.data(), sizeof(T));
  bytes.remove_prefix(sizeof(T));
  return true;
}

// A key of each direction. `purpose` with its final zero.
template <size_t kPurposeBytes, typename K>
void Derive(const JobSecret& secret, const char (&purpose)[kPurposeBytes],
            const LinkNonce& connector, const LinkNonce& listener, K& to_listener,
            K& to_connector) {
  std::array<uint8_t, 2 * sizeof(K)> out;
  crypto_generichash_state state;
  crypto_generichash_init(&state, secret.data(), secret.size(), out.size());
  crypto_generichash_update(&state, reinterpret_cast<const unsigned char*>(purpose), kPurposeBytes);
  crypto_generichash_update(&state, connector.data(), connector.size());
  crypto_generichash_update(&state, listener.data(), listener.size());
  crypto_generichash_final(&state, out.data(), out.size());
  std::copy_n(out.begin(), sizeof(K), to_listener.begin());
  std::copy_n(out.begin() + sizeof(K), sizeof(K), to_connector.begin());
}

}  // namespace

Keys MakeKeys(const JobSecret& secret, const LinkNonce& connector, const LinkNonce& listener) {
  Keys keys;
  Derive(secret, kPurpose, connector, listener, keys.to_listener, keys.to_connector);
  Derive(secret, kChunkPurpose, connector, listener, keys.chunks_to_listener,
         keys.chunks_to_connector);
  return keys;
}

ChunkTag TagOf(const Packet& packet, absl::Span<const std::byte> chunk, const ChunkKey& key) {
  std::array<uint8_t, crypto_core_hchacha20_INPUTBYTES> input;
  std::memcpy(input.data(), &packet.source, sizeof(packet.source));
  std::memcpy(input.data() + sizeof(packet.source), &packet.number, sizeof(packet.number));
  std::array<uint8_t, crypto_onetimeauth_KEYBYTES> once;
  crypto_core_hchacha20(once.data(), input.data(), key.data(), nullptr);
  ChunkTag tag;
  crypto_onetimeauth(tag.data(), reinterpret_cast<const unsigned char*>(chunk.data()), chunk.size(),
                     once.data());
  return tag;
}

bool HasTag(absl::Span<const std::byte> datagram, const ChunkTag& tag) {
  return datagram.size() >= kEnvelopeBytes &&
         sodium_memcmp(datagram.data() + kTagAt, tag.data(), tag.size()) == 0;
}

void Seal(absl::Span<std::byte> bytes, uint32_t link, const Key& key, const ChunkTag& tag) {
  WEFT_CHECK(bytes.size() >= kEnvelopeBytes + kCommonBytes, "size=" << bytes.size());
  std::memset(bytes.data(), 0, kEnvelopeBytes);
  std::memcpy(bytes.data() + kCheckBytes, &link, sizeof(link));
  const uint32_t size = IsData(bytes) ? 0 : static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data() + kBytesAt, &size, sizeof(size));
  std::memcpy(bytes.data() + kTagAt, tag.data(), tag.size());
  auto check = CheckOf(bytes, key);
  std::memcpy(bytes.data(), check.data(), check.size());
}

bool MayBeFollowed(absl::Span<const std::byte> sealed) { return !IsData(sealed); }

absl::Span<const std::byte> TakePacket(absl::Span<const std::byte>* message) {
  uint32_t bytes = 0;
  if (message->size() >= kEnvelopeBytes) {
    std::memcpy(&bytes, message->data() + kBytesAt, sizeof(bytes));
  }
  const size_t size = bytes > 0 && bytes < message->size() ? bytes : message->size();
  absl::Span<const std::byte> first = message->subspan(0, size);
  message->remove_prefix(std::min(message->size(), AlignedPacket(size)));
  return first;
}

bool LinkOf(absl::Span<const std::byte> datagram, uint32_t* link) {
  if (datagram.size() < kEnvelopeBytes + kCommonBytes) return false;
  std::memcpy(link, datagram.data() + kCheckBytes, sizeof(*link));
  return true;
}

bool IsSealed(absl::Span<const std::byte> datagram, const Key& key) {
  if (datagram.size() < kEnvelopeBytes + kCommonBytes) return false;
  auto check = CheckOf(datagram, key);
  return sodium_memcmp(check.data(), datagram.data(), check.size()) == 0;
}

std::optional<ChunkAddress> AddressOf(absl::Span<const std::byte> datagram) {
  if (datagram.size() < kBeforeChunk || !IsData(datagram)) return std::nullopt;
  ChunkAddress address;
  const std::byte* fields = datagram.data() + kMessageAt;
  std::memcpy(&address.message, fields, sizeof(uint64_t));
  std::memcpy(&address.offset, fields + 8, sizeof(uint64_t));
  std::memcpy(&address.length, fields + 16, sizeof(uint64_t));
  return address;
}

std::string Address::Encode() const {
  WEFT_CHECK(ports.size() <= kPathsMax && host.size() <= kAddressHostBytesMax,
             "ports=" << ports.size() << " host=" << host);
  std::string out;
  Put(out, link);
  Put(out, chunk_max);
  Put(out, buffer_bytes);
  out.append(reinterpret_cast<const char*>(nonce.data()), nonce.size());
  Put(out,
      static_cast<uint8_t>((has_checksum ? kHasChecksum : 0) | (trusts_host ? kTrustsHost : 0) |
                           (chunk_is_set ? kChunkIsSet : 0)));
  Put(out, static_cast<uint8_t>(host.size()));
  Put(out, static_cast<uint16_t>(ports.size()));
  for (uint16_t port : ports) Put(out, port);
  return absl::StrCat(out, host, queue_pairs);
}

absl::StatusOr<Address> Address::Decode(absl::string_view bytes) {
  Address out;
  uint8_t flags = 0, host = 0;
  uint16_t count = 0;
  size_t size = bytes.size();
  auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("a multipath address of ", size, " bytes: ", why));
  };
  if (!Take(bytes, &out.link) || !Take(bytes, &out.chunk_max) || !Take(bytes, &out.buffer_bytes) ||
      !Take(bytes, &out.nonce) || !Take(bytes, &flags) || !Take(bytes, &host) ||
      !Take(bytes, &count)) {
    return bad("too short");
  }
  if (count < 1 || count > kPathsMax || host > kAddressHostBytesMax ||
      (bytes.size() != count * sizeof(uint16_t) + host &&
       bytes.size() != count * (sizeof(uint16_t) + kAddressPairBytes) + host)) {
    return bad(absl::StrCat(count, " ports, a host of ", host, " bytes"));
  }
  if (out.chunk_max < kChunkMin || out.chunk_max > kChunkMax || out.chunk_max % 64 != 0) {
    return bad(absl::StrCat("chunks of ", out.chunk_max, " bytes"));
  }
  if (flags > (kHasChecksum | kTrustsHost | kChunkIsSet)) {
    return bad(absl::StrCat("flags ", static_cast<int>(flags)));
  }
  out.has_checksum = (flags & kHasChecksum) != 0;
  out.trusts_host = (flags & kTrustsHost) != 0;
  out.chunk_is_set = (flags & kChunkIsSet) != 0;
  out.ports.resize(count);
  for (uint16_t& port : out.ports) {
    Take(bytes, &port);
    if (port == 0) return bad("port 0");
  }
  out.host = std::string(bytes.substr(0, host));
  out.queue_pairs = std::string(bytes.substr(host));
  return out;
}

}  // namespace weft::net::multipath
