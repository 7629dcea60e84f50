// Matrix products for training: the blocked algorithm of Goto and van de Geijn ("Anatomy of
// high-performance matrix multiplication", ACM TOMS 34, 2008; the loops' names are those of BLIS).
// Panels of both matrices are packed, which takes transposes in passing, and a tile of the result
// stays in registers while the common dimension is gone through.
//
// Row-major. T is float or Bf16; sums are in fp32, and bf16 results are rounded once. OpenMP
// threads, as many as at::set_num_threads set; the result does not depend on their number, to the
// bit, nor does a row of it on the other rows of a. Memory for panels is the calling thread's and
// kept for its next product.
//
// tests/trainer/kernels/gemm_test.cc compares each, on every instruction set that the CPU has, with
// a naive reference.
#ifndef WEFT_TRAINER_KERNELS_GEMM_H_
#define WEFT_TRAINER_KERNELS_GEMM_H_

#include <cstdint>
#include <vector>

#include "trainer/kernels/kernels.h"

namespace weft::train::kernels {

// Element (row, column) is data[row * stride + column], or transposed data[column * stride + row].
template <typename T>
struct GemmOperand {
  const T* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

// What is done with a product while it is in the cache, as a loop over the whole result (kernels.h)
// would do it afterwards. `other` and `out` are of GemmProblem; m, n of the product.
enum class GemmEpilogue : uint8_t {
  kNone,
  kAddOther,        // c += other; other: [m, n]
  kGelu,            // out = gelu(c); out: [m, n]
  kSwiglu,          // out = silu(gate) * up of c = (gate, up); out: [m, n / 2], n even
  kGeluGradient,    // c *= gelu'(other); other: [m, n]
  kSwigluGradient,  // c = the gradients of other = (gate, up); c, other: [m, 2 n]
};

// c = a * b, or c += a * b, or c = a * b + bias. a: [m, k], b: [k, n], c: [m, n] in rows of
// `stride` elements. bias: [n], may be null; not with `add`. An epilogue, not with `add`, sees what
// is in c, rounded.
template <typename T, typename C>
struct GemmProblem {
  int64_t m = 0, n = 0, k = 0;
  GemmOperand<T> a, b;
  C* c = nullptr;
  int64_t stride = 0;
  bool add = false;
  const T* bias = nullptr;
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  const C* other = nullptr;
  int64_t other_stride = 0;
  C* out = nullptr;
  int64_t out_stride = 0;
  // b as GemmTable::pack_f32 or pack_bf16 has packed it, with the split of the epilogue, which is
  // then read in its place; null: each product packs b. The bits are the same.
  const uint32_t* packed_b = nullptr;
};

// Where the panels of b begin anew: no panel has columns of both gates and ups.
inline int64_t GemmSplit(GemmEpilogue epilogue, int64_t n) {
  return epilogue == GemmEpilogue::kSwiglu ? n / 2 : n;
}

struct GemmTable {
  const char* instruction_set = "";
  void (*f32)(const GemmProblem<float, float>& problem);
  void (*bf16)(const GemmProblem<Bf16, Bf16>& problem);
  void (*bf16_to_fp32)(const GemmProblem<Bf16, float>& problem);
  // b: [k, n], into packed_words(...) words at `packed`: for GemmProblem::packed_b of several
  // products with this table and GemmSplit. bf16 takes half a word or, widened, a whole one.
  int64_t (*packed_words)(bool bf16, int64_t n, int64_t k, int64_t split);
  void (*pack_f32)(const GemmOperand<float>& b, int64_t n, int64_t k, int64_t split,
                   uint32_t* packed);
  void (*pack_bf16)(const GemmOperand<Bf16>& b, int64_t n, int64_t k, int64_t split,
                    uint32_t* packed);
  // Whether bf16 is multiplied as it is; else it is widened.
  bool has_bf16 = false;
  // Multiplications and additions on operands that stay in registers and the first-level cache:
  // runs for about `seconds` on the calling thread and returns FLOP/s, what no product can exceed.
  double (*register_peak)(bool bf16, double seconds);
};

// The best that this CPU has.
const GemmTable& Gemm();
// All that it can run, the best first.
std::vector<GemmTable> GemmTables();

}  // namespace weft::train::kernels

#endif  // WEFT_TRAINER_KERNELS_GEMM_H_
