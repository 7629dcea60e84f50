#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <torch/version.h>

#include <atomic>
#include <exception>
#include <map>

#include "collectives/cuda/cuda_call.h"
#include "trainer/cuda/graph_table.h"

namespace weft::train::cuda {
namespace {

using c10::cuda::CUDACachingAllocator::CUDAAllocator;

using weft::cuda::Check;
using weft::cuda::Fail;
using weft::cuda::LastError;

cudaStream_t Native(WeftStream* stream) { return reinterpret_cast<cudaStream_t>(stream); }
cudaGraph_t Native(WeftCapture* capture) { return reinterpret_cast<cudaGraph_t>(capture); }
cudaGraphExec_t Native(WeftGraph* graph) { return reinterpret_cast<cudaGraphExec_t>(graph); }

// LibTorch's allocator. It is looked for, so that this library loads where there is no LibTorch.
template <typename Call>
int WithAllocator(const char* name, Call call) {
  // c10::cuda::CUDACachingAllocator::allocator
  static auto* const place = static_cast<std::atomic<CUDAAllocator*>*>(
      dlsym(RTLD_DEFAULT, "_ZN3c104cuda20CUDACachingAllocator9allocatorE"));
  CUDAAllocator* const allocator = place == nullptr ? nullptr : place->load();
  if (allocator == nullptr) return Fail(name, "this process has no allocator of LibTorch's");
  try {
    call(*allocator);
    return 0;
  } catch (const std::exception& error) {
    return Fail(name, error.what());
  }
}

// LibTorch's numbers of the pools that are there. A number that was released is not taken again:
// LibTorch may not have forgotten it.
struct Pool {
  uint64_t number = 0;
  int begun = 0;  // PoolBegin less PoolRelease
};
std::map<uint64_t, Pool>& Pools() {
  static std::map<uint64_t, Pool> pools;
  return pools;
}
// LibTorch's own pools have a 0 in one of the two numbers.
c10::MempoolId_t IdOf(const Pool& pool) { return {0x57656674, pool.number}; }

int PoolBegin(int device, uint64_t number, WeftStream* stream) {
  static uint64_t made = 0;
  Pool& pool = Pools()[number];
  if (pool.begun == 0) pool.number = ++made;
  const int failed = WithAllocator("beginAllocateToPool", [&](CUDAAllocator& allocator) {
    allocator.beginAllocateToPool(
        static_cast<c10::DeviceIndex>(device), IdOf(pool),
        [native = Native(stream)](cudaStream_t other) { return other == native; });
  });
  if (failed == 0) ++pool.begun;
  return failed;
}
int PoolEnd(int device, uint64_t number) {
  return WithAllocator("endAllocateToPool", [&](CUDAAllocator& allocator) {
    allocator.endAllocateToPool(static_cast<c10::DeviceIndex>(device), IdOf(Pools()[number]));
  });
}
int PoolRelease(int device, uint64_t number) {
  const int failed = WithAllocator("releasePool", [&](CUDAAllocator& allocator) {
    allocator.releasePool(static_cast<c10::DeviceIndex>(device), IdOf(Pools()[number]));
  });
  if (--Pools()[number].begun == 0) Pools().erase(number);
  return failed;
}

// Other threads go on as they please: they read batches, and copy checkpoints.
int CaptureBegin(WeftStream* stream) {
  return WEFT_CALL(cudaStreamBeginCapture, Native(stream), cudaStreamCaptureModeThreadLocal);
}
int CaptureEnd(WeftStream* stream, WeftCapture** capture) {
  cudaGraph_t native = nullptr;
  const int failed = WEFT_CALL(cudaStreamEndCapture, Native(stream), &native);
  *capture = reinterpret_cast<WeftCapture*>(native);
  return failed;
}
int CaptureDestroy(WeftCapture* capture) { return WEFT_CALL(cudaGraphDestroy, Native(capture)); }

int Instantiate(WeftCapture* capture, WeftStream* stream, WeftGraph** graph) {
  *graph = nullptr;
  cudaGraphExec_t native = nullptr;
  if (int failed = WEFT_CALL(cudaGraphInstantiate, &native, Native(capture), 0ULL)) return failed;
  if (int failed = WEFT_CALL(cudaGraphUpload, native, Native(stream))) {
    (void)cudaGraphExecDestroy(native);
    return failed;
  }
  *graph = reinterpret_cast<WeftGraph*>(native);
  return 0;
}
int Launch(WeftGraph* graph, WeftStream* stream) {
  return WEFT_CALL(cudaGraphLaunch, Native(graph), Native(stream));
}
int Destroy(WeftGraph* graph) { return WEFT_CALL(cudaGraphExecDestroy, Native(graph)); }

constexpr WeftGraphTable kTable = {
    .version = kWeftGraphVersion,
    .size = sizeof(WeftGraphTable),
    .libtorch = TORCH_VERSION,
    .LastError = LastError,
    .PoolBegin = PoolBegin,
    .PoolEnd = PoolEnd,
    .PoolRelease = PoolRelease,
    .CaptureBegin = CaptureBegin,
    .CaptureEnd = CaptureEnd,
    .CaptureDestroy = CaptureDestroy,
    .Instantiate = Instantiate,
    .Launch = Launch,
    .Destroy = Destroy,
};

}  // namespace
}  // namespace weft::train::cuda

extern "C" __attribute__((visibility("default"))) const WeftGraphTable* weft_graph_table() {
  return &weft::train::cuda::kTable;
}
