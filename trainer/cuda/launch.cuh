// What every kernel of libweft-train-cuda.so is written with: the stream that it is launched on, its
// blocks, elements of each type as fp32, and 16 bytes of them at a time.
#ifndef WEFT_TRAINER_CUDA_LAUNCH_CUH_
#define WEFT_TRAINER_CUDA_LAUNCH_CUH_

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "trainer/kernels/kernels.h"

namespace weft::train::cuda {

using kernels::Bf16;
using kernels::Fp16;

constexpr int kThreads = 256;  // of a block: 8 warps
constexpr int kWarp = 32;
constexpr int kWarps = kThreads / kWarp;
// Of a block that has a multiprocessor's half for itself. Its kernels have __launch_bounds__: with
// more than 64 registers a thread they could not be launched.
constexpr int kManyThreads = 1024;
constexpr int64_t kMostBlocks = 4096;  // enough for every multiprocessor, several times

// What Install() was given.
inline void* (*stream_of_thread)() = nullptr;
inline void (*failed)(const char* kernel, const char* reason) = nullptr;

inline cudaStream_t Stream() { return static_cast<cudaStream_t>(stream_of_thread()); }

// After a launch: tells `failed` of an error.
inline void Check(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) failed(kernel, cudaGetErrorString(error));
}

// Memory of the device for one call, in the order of the stream. Null, and told to `failed`, where
// there is none.
class Scratch {
 public:
  explicit Scratch(size_t bytes) {
    if (cudaMallocAsync(&memory_, bytes, Stream()) != cudaSuccess) Check("scratch memory");
  }
  ~Scratch() {
    if (memory_ != nullptr) (void)cudaFreeAsync(memory_, Stream());
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  template <typename T>
  T* As() const {
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
};

inline int BlocksFor(int64_t elements) {
  return static_cast<int>(
      std::clamp<int64_t>((elements + kThreads - 1) / kThreads, 1, kMostBlocks));
}
inline int BlocksOfRows(int64_t rows) {
  return static_cast<int>(std::clamp<int64_t>(rows, 1, int64_t{1} << 30));
}

inline __device__ float Get(float x) { return x; }
inline __device__ float Get(Bf16 x) { return __uint_as_float(static_cast<uint32_t>(x.bits) << 16); }
inline __device__ float Get(Fp16 x) { return __half2float(__ushort_as_half(x.bits)); }
inline __device__ void Put(float value, float& x) { x = value; }
inline __device__ void Put(float value, Bf16& x) {
  x.bits = __bfloat16_as_ushort(__float2bfloat16_rn(value));
}
inline __device__ void Put(float value, Fp16& x) {
  x.bits = __half_as_ushort(__float2half_rn(value));
}

// Elements that lie together and are loaded and stored at once.
template <typename T, int N>
struct alignas(N * sizeof(T)) Pack {
  T elements[N];
};
template <typename T>
constexpr int kPack = 16 / sizeof(T);
template <int N, typename T>
inline __device__ void Load(const T* from, float (&to)[N]) {
  const auto pack = *reinterpret_cast<const Pack<T, N>*>(from);
  for (int n = 0; n < N; ++n) to[n] = Get(pack.elements[n]);
}
template <int N, typename T>
inline __device__ void Store(const float (&from)[N], T* to) {
  Pack<T, N> pack;
  for (int n = 0; n < N; ++n) Put(from[n], pack.elements[n]);
  *reinterpret_cast<Pack<T, N>*>(to) = pack;
}
// Whether packs of N elements can be taken of `size` elements, or of rows of that many, at each of
// the addresses; null is none.
template <int N, typename... T>
bool FitsPacks(int64_t size, const T*... addresses) {
  return size % N == 0 && ((reinterpret_cast<uintptr_t>(addresses) % (N * sizeof(T)) == 0) && ...);
}
template <int N>
struct PackSize {
  static constexpr int value = N;
};
// Calls launch(PackSize<N>) with the elements that a thread takes at a time: N, or 1.
template <int N, typename Launch, typename... T>
void WithPacks(Launch launch, int64_t size, const T*... addresses) {
  if (FitsPacks<N>(size, addresses...)) {
    launch(PackSize<N>{});
  } else {
    launch(PackSize<1>{});
  }
}

// The first element and the step of a thread.
inline __device__ int64_t First() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
inline __device__ int64_t Step() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

}  // namespace weft::train::cuda

#endif  // WEFT_TRAINER_CUDA_LAUNCH_CUH_
