// What PyTorch asks of CUDA beside what NCCL does, for tensors that are copied and communicated: no
// kernel of PyTorch's own is emulated.
#include <cstring>

#include "tests/plugins/gpu/scripted/gpu.h"

using weft::scripted::Event;
using weft::scripted::Gpu;
using weft::scripted::kNotReady;
using weft::scripted::kSuccess;
using weft::scripted::Stream;

#pragma GCC visibility push(default)
extern "C" {

// The driver has a context of the device's as soon as somebody asks.
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return kSuccess;
}
int cudaPeekAtLastError() { return kSuccess; }
const char* cudaGetErrorName(int) { return "errorOfTheScriptedGpu"; }
int cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 0;
  return kSuccess;
}
int cudaMemGetInfo(size_t* free, size_t* total) {
  *free = *total = Gpu::kMemoryBytes;
  return kSuccess;
}
int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = *greatest = 0;
  return kSuccess;
}
int cudaStreamCreateWithPriority(void** stream, unsigned, int) {
  *stream = Gpu::The().NewStream();
  return kSuccess;
}
int cudaStreamQuery(void* stream) {
  return Gpu::The().Resolve(stream).IsIdle() ? kSuccess : kNotReady;
}
int cudaStreamGetPriority(void*, int* priority) {
  *priority = 0;
  return kSuccess;
}
int cudaEventRecord(void* event, void* stream);
int cudaEventRecordWithFlags(void* event, void* stream, unsigned) {
  return cudaEventRecord(event, stream);
}
int cudaEventElapsedTime(float* milliseconds, void*, void*) {
  *milliseconds = 0;
  return kSuccess;
}
int cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t size, void* stream) {
  Gpu::The().Resolve(stream).Do([=] { memmove(to, from, size); });
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
