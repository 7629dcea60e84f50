// Embeddings of tokens and positions. Their gradients are sums over rows without atomics: tokens
// are sorted first.
#include <cub/device/device_radix_sort.cuh>

#include "trainer/cuda/install.cuh"
#include "trainer/cuda/reduce.cuh"

namespace weft::train::cuda {
namespace {

template <typename T>
__global__ void EmbeddingForwardKernel(int64_t count, int64_t width, int64_t sequence,
                                       const int64_t* tokens, const T* table, const T* positions,
                                       T* y) {
  for (int64_t i = First(); i < count; i += Step()) {
    const int64_t row = i / width, column = i % width, token = tokens[row];
    float value = 0;
    if (token >= 0) {
      value = Get(table[token * width + column]);
      if (positions != nullptr) value += Get(positions[row % sequence * width + column]);
    }
    Put(value, y[i]);
  }
}
template <typename T>
void EmbeddingForward(int64_t rows, int64_t width, int64_t sequence, const int64_t* tokens,
                      const T* table, const T* positions, T* y) {
  EmbeddingForwardKernel<<<BlocksFor(rows * width), kThreads, 0, Stream()>>>(
      rows * width, width, sequence, tokens, table, positions, y);
  Check("embedding_forward");
}

// For each row: its token, or `vocab` where it has none, and the row's number.
__global__ void TokenRowsKernel(int64_t rows, int vocab, const int64_t* tokens, int* keys,
                                int* numbers) {
  for (int64_t row = First(); row < rows; row += Step()) {
    keys[row] = tokens[row] < 0 ? vocab : static_cast<int>(tokens[row]);
    numbers[row] = static_cast<int>(row);
  }
}
// A block for each place in the order of tokens; that of a token's first row adds up all of them.
template <typename T, typename G>
__global__ void EmbeddingBackwardKernel(int64_t rows, int64_t width, int vocab, const int* keys,
                                        const int* numbers, const T* dy, bool add, G* dtable) {
  const int64_t first = blockIdx.x;
  const int token = keys[first];
  if (token == vocab || (first > 0 && keys[first - 1] == token)) return;
  for (int64_t column = threadIdx.x; column < width; column += kThreads) {
    G& target = dtable[token * width + column];
    float sum = add ? Get(target) : 0.0F;
    for (int64_t i = first; i < rows && keys[i] == token; ++i) {
      sum += Get(dy[numbers[i] * width + column]);
    }
    Put(sum, target);
  }
}
// The rows in the order of their tokens, by a stable sort: sums are the same at every run.
template <typename T, typename G>
void EmbeddingBackward(int64_t rows, int64_t width, int64_t vocab, const int64_t* tokens,
                       const T* dy, bool add, G* dtable) {
  if (!add) {
    (void)cudaMemsetAsync(dtable, 0, static_cast<size_t>(vocab * width) * sizeof(G), Stream());
  }
  if (rows == 0) return;
  const int count = static_cast<int>(rows), words = static_cast<int>(vocab);
  int bits = 1;
  while ((int64_t{1} << bits) <= vocab) ++bits;
  const Scratch lists(4 * static_cast<size_t>(rows) * sizeof(int));
  int* keys = lists.As<int>();
  int *numbers = keys + rows, *sorted = numbers + rows, *order = sorted + rows;
  TokenRowsKernel<<<BlocksFor(rows), kThreads, 0, Stream()>>>(rows, words, tokens, keys, numbers);
  size_t bytes = 0;
  (void)cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, sorted, numbers, order, count, 0,
                                        bits, Stream());
  const Scratch memory(bytes);
  (void)cub::DeviceRadixSort::SortPairs(memory.As<void>(), bytes, keys, sorted, numbers, order,
                                        count, 0, bits, Stream());
  EmbeddingBackwardKernel<<<BlocksOfRows(rows), kThreads, 0, Stream()>>>(rows, width, words, sorted,
                                                                         order, dy, add, dtable);
  Check("embedding_backward");
}

template <typename T, typename G>
__global__ void PositionBackwardKernel(int64_t rows, int64_t width, int64_t sequence, const T* dy,
                                       bool add, G* dpositions) {
  for (int64_t i = First(); i < sequence * width; i += Step()) {
    float sum = add ? Get(dpositions[i]) : 0.0F;
    for (int64_t at = i; at < rows * width; at += sequence * width) sum += Get(dy[at]);
    Put(sum, dpositions[i]);
  }
}
// The sums of all rows: a thread has N columns, a block of the y axis every gridDim.y-th row.
template <int N, typename T>
__global__ void ColumnSumsKernel(int64_t rows, int64_t width, const T* dy, float* partial) {
  const int64_t column = First() * N;
  if (column >= width) return;
  float sums[N] = {};
  constexpr int kTogether = 4;  // loads under way
  const int64_t step = gridDim.y;
  int64_t row = blockIdx.y;
  for (; row + (kTogether - 1) * step < rows; row += kTogether * step) {
    float values[kTogether][N];
    for (int k = 0; k < kTogether; ++k) Load<N>(dy + (row + k * step) * width + column, values[k]);
    for (int n = 0; n < N; ++n) {
      for (int k = 0; k < kTogether; ++k) sums[n] += values[k][n];
    }
  }
  for (; row < rows; row += step) {
    float values[N];
    Load<N>(dy + row * width + column, values);
    for (int n = 0; n < N; ++n) sums[n] += values[n];
  }
  for (int n = 0; n < N; ++n) partial[blockIdx.y * width + column + n] = sums[n];
}
template <typename T, typename G>
void ColumnSums(int64_t rows, int64_t width, const T* dy, bool add, G* sums) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        constexpr int64_t kBlocks = 1024, kRowsOfBlock = 16;
        const int64_t across = (width / N + kThreads - 1) / kThreads;
        const int parts = static_cast<int>(
            std::clamp<int64_t>(rows / kRowsOfBlock, 1, std::max<int64_t>(1, kBlocks / across)));
        const Scratch scratch(static_cast<size_t>(parts * width) * sizeof(float));
        const dim3 grid(static_cast<unsigned>(across), static_cast<unsigned>(parts));
        ColumnSumsKernel<N><<<grid, kThreads, 0, Stream()>>>(rows, width, dy, scratch.As<float>());
        AddParts(parts, width, width, scratch.As<float>(), add, sums);
      },
      width, dy);
}
template <typename T, typename G>
void PositionBackward(int64_t rows, int64_t width, int64_t sequence, const T* dy, bool add,
                      G* dpositions) {
  if (sequence == 1) {
    ColumnSums(rows, width, dy, add, dpositions);
  } else {
    PositionBackwardKernel<<<BlocksFor(sequence * width), kThreads, 0, Stream()>>>(
        rows, width, sequence, dy, add, dpositions);
  }
  Check("position_backward");
}

}  // namespace

template <typename T>
void InstallEmbeddings(kernels::TypedKernels<T>& table) {
  table.embedding_forward = EmbeddingForward<T>;
  table.embedding_backward = EmbeddingBackward<T, T>;
  table.embedding_backward_fp32 = EmbeddingBackward<T, float>;
  table.position_backward = PositionBackward<T, T>;
  table.position_backward_fp32 = PositionBackward<T, float>;
}
template void InstallEmbeddings(kernels::TypedKernels<float>&);
template void InstallEmbeddings(kernels::TypedKernels<Bf16>&);
template void InstallEmbeddings(kernels::TypedKernels<Fp16>&);

}  // namespace weft::train::cuda
