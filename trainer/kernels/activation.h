// Activations of one element and their gradients, for the loops that are compiled once for each
// instruction set: always inlined, as a symbol of its own would be one for all CPUs.
#ifndef WEFT_TRAINER_KERNELS_ACTIVATION_H_
#define WEFT_TRAINER_KERNELS_ACTIVATION_H_

#include "trainer/kernels/exponential.h"

namespace weft::train::kernels {

inline constexpr float kGeluA = 0.7978845608F;  // sqrt(2 / pi)
inline constexpr float kGeluB = 0.044715F;

[[gnu::always_inline]] inline float Sigmoid(float x) { return 1.0F / (1.0F + Exp(-x)); }
[[gnu::always_inline]] inline float Tanh(float x) { return 2.0F * Sigmoid(2.0F * x) - 1.0F; }

// GPT-2's form, x/2 (1 + tanh u) = x sigmoid(2u).
[[gnu::always_inline]] inline float Gelu(float x) {
  return x * Sigmoid(2.0F * kGeluA * (x + kGeluB * x * x * x));
}
[[gnu::always_inline]] inline float GeluSlope(float x) {
  const float t = Tanh(kGeluA * (x + kGeluB * x * x * x));
  const float slope = kGeluA * (1.0F + 3.0F * kGeluB * x * x);
  return 0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * slope;
}

// silu(gate) * up.
[[gnu::always_inline]] inline float Swiglu(float gate, float up) {
  return gate * Sigmoid(gate) * up;
}
struct GateAndUp {
  float gate, up;
};
[[gnu::always_inline]] inline GateAndUp SwigluGradient(float dy, float gate, float up) {
  const float s = Sigmoid(gate);
  return {dy * up * s * (1.0F + gate * (1.0F - s)), dy * gate * s};
}

}  // namespace weft::train::kernels

#endif  // WEFT_TRAINER_KERNELS_ACTIVATION_H_
