// The set of the other side's entries that have been taken: all below `base`, and some above. It
// decides, after a queue pair was lost, what is sent again, and makes that exactly once in effect.
#ifndef WEFT_NET_VERBS_RECORD_H_
#define WEFT_NET_VERBS_RECORD_H_

#include <array>
#include <cstdint>

namespace weft::net {

// Entries of a ring, and so the most that are outstanding in one direction of a link.
inline constexpr uint64_t kRingSlots = 256;

// As it lies on the wire, little-endian.
struct ArrivalRecord {
  uint64_t base = 0;
  std::array<uint64_t, kRingSlots / 64> bits{};  // bit s: number s modulo kRingSlots, above base

  bool Has(uint64_t number) const {
    if (number < base) return true;
    if (number >= base + kRingSlots) return false;
    return (bits[number % kRingSlots / 64] >> (number % 64) & 1) != 0;
  }
  // `number` in [base, base + kRingSlots), not yet there.
  void Add(uint64_t number) {
    bits[number % kRingSlots / 64] |= uint64_t{1} << (number % 64);
    while ((bits[base % kRingSlots / 64] >> (base % 64) & 1) != 0) {
      bits[base % kRingSlots / 64] &= ~(uint64_t{1} << (base % 64));
      ++base;
    }
  }
};
static_assert(sizeof(ArrivalRecord) == 40);

}  // namespace weft::net

#endif  // WEFT_NET_VERBS_RECORD_H_
