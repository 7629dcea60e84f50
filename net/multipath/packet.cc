#include "net/multipath/packet.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status.h"

namespace weft::net::multipath {
namespace {

static_assert(std::endian::native == std::endian::little, "the wire is little endian");

constexpr uint16_t kMagic = 0x4D57;  // "WM"
constexpr uint8_t kVersion = 1;
constexpr uint8_t kHasChecksum = 1;
constexpr size_t kTypeAt = 3, kChecksumAt = 8;
constexpr int kHeldBits = 29;
constexpr uint32_t kHeldMask = (1u << kHeldBits) - 1;

// A header that grows in place.
class Writer {
 public:
  template <typename T>
  void Put(T value) {
    std::memcpy(bytes_.data() + used_, &value, sizeof(value));
    used_ += sizeof(value);
  }
  std::byte* data() { return bytes_.data(); }
  absl::Span<const std::byte> bytes() const { return absl::MakeConstSpan(bytes_.data(), used_); }

 private:
  std::array<std::byte, kHeaderBytesMax> bytes_;
  size_t used_ = 0;
};

class Reader {
 public:
  explicit Reader(absl::Span<const std::byte> bytes) : bytes_(bytes) {}
  template <typename T>
  T Get() {
    T value{};
    if (bytes_.size() < sizeof(value)) {
      is_short_ = true;
      return value;
    }
    std::memcpy(&value, bytes_.data(), sizeof(value));
    bytes_.remove_prefix(sizeof(value));
    return value;
  }
  bool is_short() const { return is_short_; }
  absl::Span<const std::byte> rest() const { return bytes_; }

 private:
  absl::Span<const std::byte> bytes_;
  bool is_short_ = false;
};

void WriteAck(const Packet& packet, Writer& writer) {
  WEFT_CHECK(packet.echoes.size() <= kEchoesMax && packet.arrived.size() <= kWordsMax,
             "echoes=" << packet.echoes.size() << " words=" << packet.arrived.size());
  writer.Put(packet.base);
  writer.Put(packet.messages);
  writer.Put(packet.credit);
  writer.Put(static_cast<uint16_t>(packet.echoes.size()));
  writer.Put(static_cast<uint16_t>(packet.arrived.size()));
  writer.Put(uint32_t{0});
  for (const Echo& echo : packet.echoes) {
    writer.Put(static_cast<uint32_t>(echo.number));
    writer.Put(std::min(echo.held_ns, kHeldMask) | static_cast<uint32_t>(echo.flags) << kHeldBits);
  }
  for (uint64_t word : packet.arrived) writer.Put(word);
}

void WriteBody(const Packet& packet, Writer& writer) {
  switch (packet.type) {
    case PacketType::kHello:
      writer.Put(packet.chunk);
      writer.Put(packet.window);
      writer.Put(packet.paths);
      writer.Put(uint16_t{0});
      writer.Put(uint32_t{0});
      return;
    case PacketType::kWelcome:
      writer.Put(packet.messages);
      writer.Put(packet.credit);
      writer.Put(packet.window);
      writer.Put(uint32_t{0});
      return;
    case PacketType::kData:
    case PacketType::kProbe:
      writer.Put(packet.number);
      writer.Put(packet.floor);
      writer.Put(packet.demand);
      if (packet.type == PacketType::kProbe) return;
      writer.Put(packet.message);
      writer.Put(packet.offset);
      writer.Put(packet.length);
      writer.Put(packet.receive);
      writer.Put(packet.control);
      return;
    case PacketType::kAck:
      return WriteAck(packet, writer);
    case PacketType::kFinish:
      return writer.Put(packet.total);
    case PacketType::kFinished:
      return;
    case PacketType::kReset:
      writer.Put(packet.echo);
      writer.Put(static_cast<uint64_t>(packet.reason));
      return;
  }
}

// The number whose low 32 bits are `low`, the nearest to `base`.
uint64_t Widen(uint64_t base, uint32_t low) {
  auto difference = static_cast<int32_t>(low - static_cast<uint32_t>(base));
  return base + static_cast<uint64_t>(static_cast<int64_t>(difference));
}

absl::Status Malformed(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("multipath packet: ", what));
}

absl::Status ReadAck(Reader& reader, Packet& packet) {
  packet.base = reader.Get<uint64_t>();
  packet.messages = reader.Get<uint64_t>();
  packet.credit = reader.Get<uint64_t>();
  auto echoes = reader.Get<uint16_t>();
  auto words = reader.Get<uint16_t>();
  reader.Get<uint32_t>();
  if (echoes > kEchoesMax || words > kWordsMax) {
    return Malformed(absl::StrCat("an acknowledgement of ", echoes, " echoes and ", words,
                                  " words; at most ", kEchoesMax, " and ", kWordsMax));
  }
  if (packet.base >= kUnlimited) return Malformed("a base beyond all numbers");
  packet.echoes.resize(echoes);
  for (Echo& echo : packet.echoes) {
    echo.number = Widen(packet.base, reader.Get<uint32_t>());
    auto held = reader.Get<uint32_t>();
    echo.held_ns = held & kHeldMask;
    echo.flags = static_cast<uint8_t>(held >> kHeldBits);
  }
  packet.arrived.resize(words);
  for (uint64_t& word : packet.arrived) word = reader.Get<uint64_t>();
  return absl::OkStatus();
}

absl::Status ReadData(Reader& reader, size_t chunk, Packet& packet) {
  packet.number = reader.Get<uint64_t>();
  packet.floor = reader.Get<uint64_t>();
  packet.demand = reader.Get<uint64_t>();
  if (packet.number >= kUnlimited || packet.floor > packet.number) {
    return Malformed(absl::StrCat("number ", packet.number, " with floor ", packet.floor));
  }
  if (packet.type == PacketType::kProbe) return absl::OkStatus();
  packet.message = reader.Get<uint64_t>();
  packet.offset = reader.Get<uint64_t>();
  packet.length = reader.Get<uint64_t>();
  packet.receive = reader.Get<uint64_t>();
  packet.control = reader.Get<uint64_t>();
  if (reader.is_short()) return absl::OkStatus();  // said by the caller
  if (packet.message >= kUnlimited || packet.length > kMessageBytesMax ||
      packet.offset > packet.length || chunk > packet.length - packet.offset) {
    return Malformed(absl::StrCat("bytes ", packet.offset, " to ", packet.offset + chunk, " of ",
                                  packet.length, " of message ", packet.message));
  }
  return absl::OkStatus();
}

absl::Status ReadBody(Reader& reader, size_t chunk, Packet& packet) {
  switch (packet.type) {
    case PacketType::kHello:
      packet.chunk = reader.Get<uint32_t>();
      packet.window = reader.Get<uint32_t>();
      packet.paths = reader.Get<uint16_t>();
      reader.Get<uint16_t>();
      reader.Get<uint32_t>();
      if (reader.is_short()) break;
      if (packet.chunk < kChunkMin || packet.chunk > kChunkMax || packet.paths == 0 ||
          packet.window == 0 || packet.window > kNumbersMax) {
        return Malformed(absl::StrCat("hello with chunks of ", packet.chunk, " bytes, ",
                                      packet.paths, " paths, a window of ", packet.window));
      }
      break;
    case PacketType::kWelcome:
      packet.messages = reader.Get<uint64_t>();
      packet.credit = reader.Get<uint64_t>();
      packet.window = reader.Get<uint32_t>();
      reader.Get<uint32_t>();
      if (reader.is_short()) break;
      if (packet.window == 0 || packet.window > kMessagesMax) {
        return Malformed(absl::StrCat("welcome with a window of ", packet.window, " messages"));
      }
      break;
    case PacketType::kData:
    case PacketType::kProbe:
      return ReadData(reader, chunk, packet);
    case PacketType::kAck:
      return ReadAck(reader, packet);
    case PacketType::kFinish:
      packet.total = reader.Get<uint64_t>();
      break;
    case PacketType::kFinished:
      break;
    case PacketType::kReset: {
      packet.echo = reader.Get<uint64_t>();
      auto reason = reader.Get<uint64_t>();
      if (!reader.is_short() && reason != 1 && reason != 2) {
        return Malformed(absl::StrCat("reset for reason ", reason));
      }
      packet.reason = static_cast<ResetReason>(reason);
      break;
    }
  }
  return absl::OkStatus();
}

uint32_t Checksum(absl::Span<const std::byte> bytes) {
  constexpr std::array<std::byte, 4> kZero{};
  uint32_t crc = Crc32c(bytes.subspan(0, kChecksumAt));
  crc = Crc32c(kZero, crc);
  return Crc32c(bytes.subspan(kChecksumAt + 4), crc);
}

}  // namespace

void WriteHeader(const Packet& packet, absl::Span<const std::byte> chunk, bool has_checksum,
                 std::string& out) {
  Writer writer;
  writer.Put(kMagic);
  writer.Put(kVersion);
  writer.Put(static_cast<uint8_t>(packet.type));
  writer.Put(packet.path);
  writer.Put(has_checksum ? kHasChecksum : uint8_t{0});
  writer.Put(uint8_t{0});
  writer.Put(uint32_t{0});  // the checksum, below
  writer.Put(packet.heard);
  writer.Put(uint16_t{0});
  writer.Put(packet.source);
  writer.Put(packet.target);
  WriteBody(packet, writer);
  if (has_checksum) {
    uint32_t crc = Crc32c(chunk, Checksum(writer.bytes()));
    std::memcpy(writer.data() + kChecksumAt, &crc, sizeof(crc));
  }
  out.append(reinterpret_cast<const char*>(writer.data()), writer.bytes().size());
}

void Write(const Packet& packet, absl::Span<const std::byte> chunk, bool has_checksum,
           std::string& out) {
  WriteHeader(packet, chunk, has_checksum, out);
  out.append(reinterpret_cast<const char*>(chunk.data()), chunk.size());
}

absl::Status ParseParts(absl::Span<const std::byte> header, absl::Span<const std::byte> chunk,
                        bool needs_checksum, Packet& packet) {
  Reader reader(header);
  auto magic = reader.Get<uint16_t>();
  auto version = reader.Get<uint8_t>();
  auto type = reader.Get<uint8_t>();
  packet.path = reader.Get<PathId>();
  auto flags = reader.Get<uint8_t>();
  reader.Get<uint8_t>();
  auto checksum = reader.Get<uint32_t>();
  packet.heard = reader.Get<uint16_t>();
  reader.Get<uint16_t>();
  packet.source = reader.Get<uint64_t>();
  packet.target = reader.Get<uint64_t>();
  if (reader.is_short()) return Malformed(absl::StrCat(header.size(), " bytes long"));
  if (magic != kMagic) return Malformed(absl::StrCat("magic ", absl::Hex(magic)));
  if (version != kVersion) return Malformed(absl::StrCat("version ", version));
  if (type < 1 || type > 8) return Malformed(absl::StrCat("type ", type));
  bool has_checksum = (flags & kHasChecksum) != 0;
  if (needs_checksum && !has_checksum) return Malformed("no checksum");
  if (has_checksum && Crc32c(chunk, Checksum(header)) != checksum) {
    return absl::DataLossError("multipath packet: the checksum differs");
  }
  packet.type = static_cast<PacketType>(type);
  if (packet.source == 0) return Malformed("no incarnation");
  WEFT_RETURN_IF_ERROR(ReadBody(reader, chunk.size(), packet));
  if (reader.is_short()) {
    return Malformed(absl::StrCat("type ", type, " in ", header.size(), " bytes"));
  }
  size_t spare = reader.rest().size() + (packet.type == PacketType::kData ? 0 : chunk.size());
  if (spare > 0) return Malformed(absl::StrCat("type ", type, " with ", spare, " bytes to spare"));
  return absl::OkStatus();
}

absl::StatusOr<Parsed> Parse(absl::Span<const std::byte> bytes, bool needs_checksum) {
  bool is_data = bytes.size() >= kDataHeaderBytes &&
                 static_cast<PacketType>(bytes[kTypeAt]) == PacketType::kData;
  absl::Span<const std::byte> header = is_data ? bytes.subspan(0, kDataHeaderBytes) : bytes;
  Parsed parsed;
  parsed.chunk = bytes.subspan(header.size());
  WEFT_RETURN_IF_ERROR(ParseParts(header, parsed.chunk, needs_checksum, parsed.packet));
  return parsed;
}

}  // namespace weft::net::multipath
