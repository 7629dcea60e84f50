// Attention for training, forward and backward, in memory linear in the sequence: the scores of one
// tile of queries and keys exist at a time, and the softmax goes over keys as they come (Dao,
// "FlashAttention-2", 2023, arXiv 2307.08691, algorithms 1 and 2; the online softmax is Milakov and
// Gimelshein's, 2018). Products are of the tiles of registers of gemm_tile.h.
//
// T is float or Bf16; scores, sums and the softmax are in fp32, and bf16 rounds results once, and
// probabilities where the CPU multiplies pairs of bf16. OpenMP threads, as many as
// at::set_num_threads set; results do not depend on their number, to the bit. Each thread takes
// whole heads of keys and values of a sample, or all share each where there are too few of them;
// these are packed once for all queries that they serve, and only scores that are seen, up to a few
// beside them, are computed.
//
// tests/trainer/kernels/attention_test.cc compares each, on every instruction set that the CPU has,
// with a naive reference.
#ifndef WEFT_TRAINER_KERNELS_ATTENTION_H_
#define WEFT_TRAINER_KERNELS_ATTENTION_H_

#include <cstdint>
#include <vector>

#include "trainer/kernels/kernels.h"

namespace weft::train::kernels {

// Query i sees key j where 0 <= distance + i - j, and below `window` if that is not 0. Each
// key-value head serves heads / kv_heads neighbouring heads of queries.
struct AttentionShape {
  int64_t batch = 0, heads = 0, kv_heads = 0, queries = 0, keys = 0, width = 0;
  int64_t distance = 0;  // position of the first query less that of the first key
  int64_t window = 0;
  float scale = 1;  // of scores
};

// Element i of a row is data[sample * batch + head_number * head + row_number * row + i].
template <typename T>
struct HeadRows {
  T* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;
  T* At(int64_t sample, int64_t head_number, int64_t row_number) const {
    return data + sample * batch + head_number * head + row_number * row;
  }
};

template <typename T>
struct AttentionInputRows {
  HeadRows<const T> query, key, value;
};

template <typename T>
struct AttentionKernels {
  // out: [batch, heads, queries, width]; logsumexp: [batch, heads, queries], contiguous. A query
  // that sees no key has 0, and minus infinity.
  void (*forward)(const AttentionShape& shape, const AttentionInputRows<T>& in,
                  const HeadRows<T>& out, float* logsumexp);
  // Gradients are overwritten. `out`, `logsumexp`: over all keys of these queries, which may be
  // more than those of this call: gradients of parts then add up to the whole.
  void (*backward)(const AttentionShape& shape, const HeadRows<const T>& dout,
                   const AttentionInputRows<T>& in, const HeadRows<const T>& out,
                   const float* logsumexp, const HeadRows<T>& dquery, const HeadRows<T>& dkey,
                   const HeadRows<T>& dvalue);
};

struct AttentionTable {
  const char* instruction_set = "";
  AttentionKernels<float> f32;
  AttentionKernels<Bf16> bf16;
  template <typename T>
  const AttentionKernels<T>& Of() const;
};
template <>
inline const AttentionKernels<float>& AttentionTable::Of<float>() const {
  return f32;
}
template <>
inline const AttentionKernels<Bf16>& AttentionTable::Of<Bf16>() const {
  return bf16;
}

// The best that this CPU has.
const AttentionTable& Attention();
// All that it can run, the best first.
std::vector<AttentionTable> AttentionTables();

}  // namespace weft::train::kernels

#endif  // WEFT_TRAINER_KERNELS_ATTENTION_H_
