// e^x for the loops that are compiled once for each instruction set.
#ifndef WEFT_TRAINER_KERNELS_EXPONENTIAL_H_
#define WEFT_TRAINER_KERNELS_EXPONENTIAL_H_

#include <bit>
#include <cmath>
#include <cstdint>

namespace weft::train::kernels {

// e^x to 2 units in the last place: x = r ln 2 + f, |f| <= ln 2 / 2, polynomial of Cephes' expf
// (Moshier, netlib.org/cephes). Always inlined: a symbol of its own would be one for all CPUs.
[[gnu::always_inline]] inline float Exp(float x) {
  x = x < -87.0F ? -87.0F : x;
  x = x > 88.0F ? 88.0F : x;
  float r = std::floor(x * 1.44269504F + 0.5F);
  float f = x - r * 0.693359375F;
  f = f + r * 2.12194440e-4F;
  float p = 1.9875691500e-4F;
  p = p * f + 1.3981999507e-3F;
  p = p * f + 8.3334519073e-3F;
  p = p * f + 4.1665795894e-2F;
  p = p * f + 1.6666665459e-1F;
  p = p * f + 5.0000001201e-1F;
  p = p * f * f + f + 1.0F;
  // A NaN has no integer; it must come out as it went in.
  int32_t exponent = x == x ? static_cast<int32_t>(r) : 0;
  return p * std::bit_cast<float>((exponent + 127) << 23);
}

}  // namespace weft::train::kernels

#endif  // WEFT_TRAINER_KERNELS_EXPONENTIAL_H_
