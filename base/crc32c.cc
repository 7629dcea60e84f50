#include "base/crc32c.h"

#include <array>
#include <cstring>
#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

namespace weft {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

// Slicing by eight: table k advances a byte by k more bytes of zeros.
using Tables = std::array<std::array<uint32_t, 256>, 8>;
constexpr Tables MakeTables() {
  Tables tables{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    tables[0][byte] = crc;
  }
  for (size_t k = 1; k < 8; ++k) {
    for (size_t byte = 0; byte < 256; ++byte) {
      uint32_t crc = tables[k - 1][byte];
      tables[k][byte] = (crc >> 8) ^ tables[0][crc & 0xFF];
    }
  }
  return tables;
}
constexpr Tables kTables = MakeTables();

uint64_t Load(const std::byte* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t Crc32cByInstruction(absl::Span<const std::byte> bytes,
                                                               uint32_t before) {
  uint64_t crc = ~before;
  while (bytes.size() >= 8) {
    crc = _mm_crc32_u64(crc, Load(bytes.data()));
    bytes.remove_prefix(8);
  }
  for (std::byte byte : bytes) {
    crc = _mm_crc32_u8(static_cast<uint32_t>(crc), static_cast<uint8_t>(byte));
  }
  return ~static_cast<uint32_t>(crc);
}
#endif

}  // namespace

namespace internal {

uint32_t Crc32cByTable(absl::Span<const std::byte> bytes, uint32_t before) {
  uint32_t crc = ~before;
  while (bytes.size() >= 8) {
    uint64_t word = Load(bytes.data()) ^ crc;
    crc = 0;
    for (size_t k = 0; k < 8; ++k) crc ^= kTables[7 - k][(word >> (8 * k)) & 0xFF];
    bytes.remove_prefix(8);
  }
  for (std::byte byte : bytes) {
    crc = (crc >> 8) ^ kTables[0][(crc ^ static_cast<uint32_t>(byte)) & 0xFF];
  }
  return ~crc;
}

}  // namespace internal

uint32_t Crc32c(absl::Span<const std::byte> bytes, uint32_t before) {
#if defined(__x86_64__)
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  if (has_instruction) return Crc32cByInstruction(bytes, before);
#endif
  return internal::Crc32cByTable(bytes, before);
}

uint32_t Crc32c(absl::string_view text, uint32_t before) {
  return Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()),
                before);
}

}  // namespace weft
