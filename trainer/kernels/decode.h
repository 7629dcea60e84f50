// The loops of generating text: a few vectors times a matrix, attention of single queries over
// cached keys and values. Both are bound by reading: a matrix and a cache are streamed once, by all
// OpenMP threads, whatever the number of vectors.
//
// Plain pointers, row-major, no state. T is float, Bf16 or Fp16; all sums are in fp32. The result
// for a vector depends neither on the number of threads nor on the vectors beside it, to the bit.
//
// tests/trainer/kernels/decode_test.cc compares each, on every instruction set that the CPU has,
// with a naive reference.
#ifndef WEFT_TRAINER_KERNELS_DECODE_H_
#define WEFT_TRAINER_KERNELS_DECODE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trainer/kernels/kernels.h"

namespace weft::train::kernels {

// A query of every head of one sequence, and the keys and values it meets.
template <typename T>
struct CachedAttention {
  const T* query = nullptr;   // [heads, width]
  const T* keys = nullptr;    // of key-value head h from h * stride on: [count, width]
  const T* values = nullptr;  // likewise
  int64_t stride = 0;         // elements from one key-value head to the next
  int64_t count = 0;          // keys, in any order; at least 1
  T* out = nullptr;           // [heads, width]
};

template <typename T>
struct DecodeKernels {
  // y = x weight^T + bias. x: [vectors, inputs], weight: [outputs, inputs], y: [vectors, outputs];
  // bias may be null.
  void (*multiply)(int64_t vectors, int64_t outputs, int64_t inputs, const T* x, const T* weight,
                   const T* bias, T* y);
  // The same without a bias, not rounded.
  void (*multiply_fp32)(int64_t vectors, int64_t outputs, int64_t inputs, const T* x,
                        const T* weight, float* y);
  // softmax(query keys^T / sqrt(width)) values, for each of `sequences`. Each key-value head serves
  // heads / kv_heads neighbouring heads.
  void (*attend)(int64_t sequences, int64_t heads, int64_t kv_heads, int64_t width,
                 const CachedAttention<T>* what);
};

struct DecodeTable {
  const char* instruction_set = "";
  DecodeKernels<float> f32;
  DecodeKernels<Bf16> bf16;
  DecodeKernels<Fp16> fp16;
  // Reads memory as multiply() does, without arithmetic worth the name: what bounds it. Returns a
  // number that depends on every byte.
  uint32_t (*read)(int64_t bytes, const std::byte* data);

  template <typename T>
  const DecodeKernels<T>& Of() const;
};
template <>
inline const DecodeKernels<float>& DecodeTable::Of<float>() const {
  return f32;
}
template <>
inline const DecodeKernels<Bf16>& DecodeTable::Of<Bf16>() const {
  return bf16;
}
template <>
inline const DecodeKernels<Fp16>& DecodeTable::Of<Fp16>() const {
  return fp16;
}

// The best that this CPU has.
const DecodeTable& Decoding();
// All that it can run, the best first.
std::vector<DecodeTable> DecodeTables();

}  // namespace weft::train::kernels

#endif  // WEFT_TRAINER_KERNELS_DECODE_H_
