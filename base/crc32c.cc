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

using Operator = std::array<uint32_t, 32>;  // on remainders, as a matrix over GF(2)

constexpr uint32_t Apply(const Operator& columns, uint32_t vector) {
  uint32_t out = 0;
  for (size_t bit = 0; bit < columns.size(); ++bit) {
    if ((vector >> bit & 1) != 0) out ^= columns[bit];
  }
  return out;
}

constexpr Operator Twice(const Operator& once) {
  Operator twice{};
  for (size_t bit = 0; bit < once.size(); ++bit) twice[bit] = Apply(once, once[bit]);
  return twice;
}

constexpr Operator OneBitOfZero() {
  Operator zeros{};
  zeros[0] = kPolynomial;
  for (size_t bit = 1; bit < zeros.size(); ++bit) zeros[bit] = uint32_t{1} << (bit - 1);
  return zeros;
}

// Operator k: 2^k bytes of zero.
constexpr std::array<Operator, 64> MakeZeroBytes() {
  Operator zeros = OneBitOfZero();
  for (int bits = 1; bits < 8; bits *= 2) zeros = Twice(zeros);
  std::array<Operator, 64> operators{};
  for (Operator& each : operators) {
    each = zeros;
    zeros = Twice(zeros);
  }
  return operators;
}
constexpr std::array<Operator, 64> kZeroBytes = MakeZeroBytes();

#if defined(__x86_64__)
// An instruction takes three cycles and one can begin in each, so that three lanes of a block run
// side by side. What the first two give is then moved on past the zeros of the lanes behind them.
constexpr size_t kLaneBytes = 1024;  // a power of two

// Table k: what byte k of a remainder becomes behind kLaneBytes zeros.
using Shift = std::array<std::array<uint32_t, 256>, 4>;
constexpr Shift MakeShift() {
  Operator zeros = OneBitOfZero();
  for (size_t bits = 1; bits < 8 * kLaneBytes; bits *= 2) zeros = Twice(zeros);
  Shift shift{};
  for (size_t k = 0; k < shift.size(); ++k) {
    for (uint32_t byte = 0; byte < 256; ++byte) shift[k][byte] = Apply(zeros, byte << (8 * k));
  }
  return shift;
}
constexpr Shift kShift = MakeShift();

uint32_t PastLane(uint64_t crc) {
  return kShift[0][crc & 0xFF] ^ kShift[1][(crc >> 8) & 0xFF] ^ kShift[2][(crc >> 16) & 0xFF] ^
         kShift[3][(crc >> 24) & 0xFF];
}

__attribute__((target("sse4.2"))) uint32_t Crc32cByInstruction(absl::Span<const std::byte> bytes,
                                                               uint32_t before) {
  uint64_t crc = ~before;
  while (bytes.size() >= 3 * kLaneBytes) {
    const std::byte* at = bytes.data();
    uint64_t second = 0, third = 0;
    for (size_t i = 0; i < kLaneBytes; i += 8) {
      crc = _mm_crc32_u64(crc, Load(at + i));
      second = _mm_crc32_u64(second, Load(at + kLaneBytes + i));
      third = _mm_crc32_u64(third, Load(at + 2 * kLaneBytes + i));
    }
    crc = PastLane(PastLane(crc) ^ second) ^ third;
    bytes.remove_prefix(3 * kLaneBytes);
  }
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

uint32_t Crc32cOfSecond(uint32_t first, uint32_t both, uint64_t second_bytes) {
  // What `first` becomes behind as many bytes of zero; the rest of `both` is the second's.
  for (size_t bit = 0; bit < kZeroBytes.size(); ++bit) {
    if ((second_bytes >> bit & 1) != 0) first = Apply(kZeroBytes[bit], first);
  }
  return both ^ first;
}

uint32_t Crc32c(absl::string_view text, uint32_t before) {
  return Crc32c(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()),
                before);
}

}  // namespace weft
