// Activations with their gradients, rotary positions and dropout.
#include "trainer/cuda/install.cuh"
#include "trainer/cuda/launch.cuh"

namespace weft::train::cuda {
namespace {

constexpr float kGeluA = 0.7978845608F;  // sqrt(2 / pi)
constexpr float kGeluB = 0.044715F;

// tanh to some 1e-6: 1 - 2 / (1 + exp(2 x)). CUDA's own takes several times as long.
__device__ float FastTanh(float x) { return 1.0F - __fdividef(2.0F, 1.0F + __expf(2.0F * x)); }

template <int N, typename T>
__global__ void GeluForwardKernel(int64_t packs, const T* x, T* y) {
  for (int64_t i = First(); i < packs; i += Step()) {
    float values[N];
    Load<N>(x + i * N, values);
    for (float& v : values) v = 0.5F * v * (1.0F + FastTanh(kGeluA * (v + kGeluB * v * v * v)));
    Store<N>(values, y + i * N);
  }
}
template <typename T>
void GeluForward(int64_t count, const T* x, T* y) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        GeluForwardKernel<N><<<BlocksFor(count / N), kThreads, 0, Stream()>>>(count / N, x, y);
      },
      count, x, y);
  Check("gelu_forward");
}
template <int N, typename T>
__global__ void GeluBackwardKernel(int64_t packs, const T* dy, const T* x, T* dx) {
  for (int64_t i = First(); i < packs; i += Step()) {
    float values[N], given[N];
    Load<N>(x + i * N, values);
    Load<N>(dy + i * N, given);
    for (int n = 0; n < N; ++n) {
      const float v = values[n];
      const float t = FastTanh(kGeluA * (v + kGeluB * v * v * v));
      const float slope = kGeluA * (1.0F + 3.0F * kGeluB * v * v);
      given[n] *= 0.5F * (1.0F + t + v * (1.0F - t * t) * slope);
    }
    Store<N>(given, dx + i * N);
  }
}
template <typename T>
void GeluBackward(int64_t count, const T* dy, const T* x, T* dx) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        GeluBackwardKernel<N>
            <<<BlocksFor(count / N), kThreads, 0, Stream()>>>(count / N, dy, x, dx);
      },
      count, dy, x, dx);
  Check("gelu_backward");
}

__device__ float Sigmoid(float x) { return __fdividef(1.0F, 1.0F + __expf(-x)); }

template <int N, typename T>
__global__ void SwigluForwardKernel(int64_t packs, int64_t width, const T* x, T* y) {
  for (int64_t i = First(); i < packs; i += Step()) {
    const int64_t row = i * N / width, at = row * 2 * width + (i * N - row * width);
    float gate[N], up[N];
    Load<N>(x + at, gate);
    Load<N>(x + at + width, up);
    for (int n = 0; n < N; ++n) up[n] *= gate[n] * Sigmoid(gate[n]);
    Store<N>(up, y + i * N);
  }
}
template <typename T>
void SwigluForward(int64_t rows, int64_t width, const T* x, T* y) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        const int64_t packs = rows * width / N;
        SwigluForwardKernel<N><<<BlocksFor(packs), kThreads, 0, Stream()>>>(packs, width, x, y);
      },
      width, x, y);
  Check("swiglu_forward");
}
template <int N, typename T>
__global__ void SwigluBackwardKernel(int64_t packs, int64_t width, const T* dy, const T* x, T* dx) {
  for (int64_t i = First(); i < packs; i += Step()) {
    const int64_t row = i * N / width, at = row * 2 * width + (i * N - row * width);
    float gates[N], ups[N], given[N];
    Load<N>(x + at, gates);
    Load<N>(x + at + width, ups);
    Load<N>(dy + i * N, given);
    for (int n = 0; n < N; ++n) {
      const float gate = gates[n], sigmoid = Sigmoid(gate);
      gates[n] = given[n] * ups[n] * sigmoid * (1.0F + gate * (1.0F - sigmoid));
      ups[n] = given[n] * gate * sigmoid;
    }
    Store<N>(gates, dx + at);
    Store<N>(ups, dx + at + width);
  }
}
template <typename T>
void SwigluBackward(int64_t rows, int64_t width, const T* dy, const T* x, T* dx) {
  WithPacks<kPack<T>>(
      [&](auto size) {
        constexpr int N = decltype(size)::value;
        const int64_t packs = rows * width / N;
        SwigluBackwardKernel<N>
            <<<BlocksFor(packs), kThreads, 0, Stream()>>>(packs, width, dy, x, dx);
      },
      width, dy, x, dx);
  Check("swiglu_backward");
}

// A thread turns N pairs that lie together. cosine and sine are read as they are.
template <int N, typename T>
__global__ void RotateKernel(int64_t packs, int64_t sequence, int64_t heads, int64_t half,
                             int64_t stride, const float* cosine, const float* sine, float sign,
                             T* x) {
  const int64_t of_head = half / N;
  for (int64_t i = First(); i < packs; i += Step()) {
    const int64_t within = i % of_head * N, head = i / of_head % heads, row = i / of_head / heads;
    const int64_t angle = row % sequence * half + within;
    T* at = x + row * stride + head * 2 * half + within;
    float first[N], second[N];
    Load<N>(at, first);
    Load<N>(at + half, second);
    for (int n = 0; n < N; ++n) {
      const float c = cosine[angle + n], s = sine[angle + n] * sign, before = first[n];
      first[n] = before * c - second[n] * s;
      second[n] = second[n] * c + before * s;
    }
    Store<N>(first, at);
    Store<N>(second, at + half);
  }
}
template <typename T>
void Rotate(int64_t rows, int64_t sequence, int64_t heads, int64_t width, int64_t stride,
            const float* cosine, const float* sine, bool inverse, T* x) {
  const int64_t half = width / 2;
  auto launch = [&](auto size) {
    constexpr int N = decltype(size)::value;
    const int64_t packs = rows * heads * half / N;
    RotateKernel<N><<<BlocksFor(packs), kThreads, 0, Stream()>>>(
        packs, sequence, heads, half, stride, cosine, sine, inverse ? -1.0F : 1.0F, x);
  };
  if (stride % kPack<T> == 0) {
    WithPacks<kPack<T>>(launch, half, x);
  } else {
    launch(PackSize<1>{});
  }
  Check("rotate");
}

// The hashes of the CPU's loop (loops.cc): the same elements are dropped.
template <typename T>
__global__ void DropoutKernel(int64_t count, int64_t width, float scale, uint32_t threshold,
                              uint64_t seed, const int64_t* row_numbers, const T* x, T* y) {
  for (int64_t i = First(); i < count; i += Step()) {
    uint64_t mixed = seed + static_cast<uint64_t>(row_numbers[i / width]) * 0x9E3779B97F4A7C15ULL;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9ULL;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBULL;
    uint32_t hash = static_cast<uint32_t>(mixed ^ (mixed >> 32)) ^
                    (static_cast<uint32_t>(i % width) * 0x9E3779B1U);
    hash = (hash ^ (hash >> 16)) * 0x85EBCA6BU;
    hash = (hash ^ (hash >> 13)) * 0xC2B2AE35U;
    hash ^= hash >> 16;
    Put(hash < threshold ? 0.0F : Get(x[i]) * scale, y[i]);
  }
}
template <typename T>
void Dropout(int64_t rows, int64_t width, float probability, uint64_t seed,
             const int64_t* row_numbers, const T* x, T* y) {
  DropoutKernel<<<BlocksFor(rows * width), kThreads, 0, Stream()>>>(
      rows * width, width, 1.0F / (1.0F - probability),
      static_cast<uint32_t>(probability * 4294967040.0F), seed, row_numbers, x, y);
  Check("dropout");
}

}  // namespace

template <typename T>
void InstallElementwise(kernels::TypedKernels<T>& table) {
  table.gelu_forward = GeluForward<T>;
  table.gelu_backward = GeluBackward<T>;
  table.swiglu_forward = SwigluForward<T>;
  table.swiglu_backward = SwigluBackward<T>;
  table.rotate = Rotate<T>;
  table.dropout = Dropout<T>;
}
template void InstallElementwise(kernels::TypedKernels<float>&);
template void InstallElementwise(kernels::TypedKernels<Bf16>&);
template void InstallElementwise(kernels::TypedKernels<Fp16>&);

}  // namespace weft::train::cuda
