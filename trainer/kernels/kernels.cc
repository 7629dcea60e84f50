#include "trainer/kernels/kernels.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "trainer/kernels/instruction_sets.h"

namespace weft::train::kernels {

namespace avx512 {
KernelTable Table();
}
namespace avx2 {
KernelTable Table();
}
namespace plain {
KernelTable Table();
}

namespace {

template <typename G>
void Deliver(int64_t width, const float* sum, bool add, G* out) {
  for (int64_t i = 0; i < width; ++i) Store(add ? Load(out[i]) + sum[i] : sum[i], out[i]);
}

template <typename T, typename G>
void SumByToken(int64_t rows, int64_t width, int64_t vocab, const int64_t* tokens, const T* dy,
                bool add, G* dtable) {
  // Rows of each token, by a counting sort: first[token] .. first[token + 1].
  std::vector<int32_t> first(static_cast<size_t>(vocab + 1), 0);
  for (int64_t row = 0; row < rows; ++row) {
    if (tokens[row] >= 0) ++first[static_cast<size_t>(tokens[row] + 1)];
  }
  for (size_t token = 0; token < static_cast<size_t>(vocab); ++token) {
    first[token + 1] += first[token];
  }
  std::vector<int32_t> order(static_cast<size_t>(rows));
  std::vector<int32_t> next(first.begin(), first.end() - 1);
  for (int64_t row = 0; row < rows; ++row) {
    if (tokens[row] < 0) continue;
    order[static_cast<size_t>(next[static_cast<size_t>(tokens[row])]++)] =
        static_cast<int32_t>(row);
  }
#pragma omp parallel
  {
    std::vector<float> sum(static_cast<size_t>(width));
#pragma omp for schedule(static)
    for (int64_t token = 0; token < vocab; ++token) {
      G* out = dtable + token * width;
      int32_t begin = first[static_cast<size_t>(token)];
      int32_t end = first[static_cast<size_t>(token) + 1];
      if (begin == end) {
        if (!add) std::fill(out, out + width, G{});
        continue;
      }
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (int32_t i = begin; i < end; ++i) {
        const T* in = dy + order[static_cast<size_t>(i)] * width;
        for (int64_t j = 0; j < width; ++j) sum[static_cast<size_t>(j)] += Load(in[j]);
      }
      Deliver(width, sum.data(), add, out);
    }
  }
}

template <typename T, typename G>
void SumByPosition(int64_t rows, int64_t width, int64_t sequence, const T* dy, bool add,
                   G* dpositions) {
#pragma omp parallel
  {
    std::vector<float> sum(static_cast<size_t>(width));
#pragma omp for schedule(static)
    for (int64_t position = 0; position < sequence; ++position) {
      std::fill(sum.begin(), sum.end(), 0.0F);
      for (int64_t row = position; row < rows; row += sequence) {
        const T* in = dy + row * width;
        for (int64_t j = 0; j < width; ++j) sum[static_cast<size_t>(j)] += Load(in[j]);
      }
      Deliver(width, sum.data(), add, dpositions + position * width);
    }
  }
}

template <typename T>
void AddSums(TypedKernels<T>& kernels) {
  kernels.embedding_backward = SumByToken<T, T>;
  kernels.embedding_backward_fp32 = SumByToken<T, float>;
  kernels.position_backward = SumByPosition<T, T>;
  kernels.position_backward_fp32 = SumByPosition<T, float>;
}

}  // namespace

std::vector<KernelTable> KernelTables() {
  std::vector<KernelTable> tables =
      TablesHere<KernelTable>(nullptr, WEFT_KERNEL_SETS_WITHOUT_BF16(Table));
  for (KernelTable& table : tables) {
    AddSums(table.f32);
    AddSums(table.bf16);
    AddSums(table.fp16);
  }
  return tables;
}

const KernelTable& Kernels() {
  static const KernelTable table = KernelTables().front();
  return table;
}

}  // namespace weft::train::kernels
