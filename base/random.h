// Seeded random streams. The same seed and stream number give the same values on every machine, so
// a run is reproduced by its seed alone; streams of one seed are independent, so that adding a draw
// to one part of a program does not shift another's.
//
// SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014,
// Fig. 16) seeds xoshiro256** (Blackman, Vigna, "Scrambled linear pseudorandom number generators",
// 2019).
#ifndef WEFT_BASE_RANDOM_H_
#define WEFT_BASE_RANDOM_H_

#include <array>
#include <bit>
#include <cstdint>
#include <limits>
#include <utility>

namespace weft {

// One step of SplitMix64: a good 64-bit mixing function as well.
constexpr uint64_t SplitMix64(uint64_t& state) {
  uint64_t z = (state += 0x9E3779B97F4A7C15ULL);
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
  return z ^ (z >> 31);
}

// A UniformRandomBitGenerator. Not thread-safe.
class Random {
 public:
  using result_type = uint64_t;
  explicit constexpr Random(uint64_t seed, uint64_t stream = 0) {
    uint64_t state = seed;
    state = SplitMix64(state) ^ (stream * 0xD1342543DE82EF95ULL);
    for (uint64_t& word : state_) word = SplitMix64(state);
  }
  // The generator itself, without the seeding: `state` must not be all zero.
  static constexpr Random FromState(const std::array<uint64_t, 4>& state) {
    Random random(0);
    random.state_ = state;
    return random;
  }
  static constexpr result_type min() { return 0; }
  static constexpr result_type max() { return std::numeric_limits<uint64_t>::max(); }

  constexpr uint64_t operator()() {
    uint64_t result = std::rotl(state_[1] * 5, 7) * 9;
    uint64_t t = state_[1] << 17;
    state_[2] ^= state_[0];
    state_[3] ^= state_[1];
    state_[1] ^= state_[2];
    state_[0] ^= state_[3];
    state_[2] ^= t;
    state_[3] = std::rotl(state_[3], 45);
    return result;
  }

  // Uniform in [0, bound); bound > 0. Multiply-shift with rejection (Lemire, 2019): no bias.
  constexpr uint64_t Below(uint64_t bound) {
    __extension__ using uint128 = unsigned __int128;
    uint128 product = static_cast<uint128>((*this)()) * bound;
    if (static_cast<uint64_t>(product) < bound) {
      uint64_t threshold = -bound % bound;
      while (static_cast<uint64_t>(product) < threshold) {
        product = static_cast<uint128>((*this)()) * bound;
      }
    }
    return static_cast<uint64_t>(product >> 64);
  }

  // Uniform in [0, 1), 53 bits.
  constexpr double Uniform() { return static_cast<double>((*this)() >> 11) * 0x1.0p-53; }

  // Fisher-Yates; unlike std::shuffle the same on every standard library.
  template <typename Container>
  constexpr void Shuffle(Container& items) {
    for (uint64_t i = items.size(); i > 1; --i) std::swap(items[i - 1], items[Below(i)]);
  }

 private:
  std::array<uint64_t, 4> state_{};
};

}  // namespace weft

#endif  // WEFT_BASE_RANDOM_H_
