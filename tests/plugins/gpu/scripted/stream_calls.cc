// CUDA's calls about streams and events, and NCCL's launch of a kernel. Nothing is ever captured.
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "tests/plugins/gpu/scripted/gpu.h"

using weft::scripted::Event;
using weft::scripted::Gpu;
using weft::scripted::kNotReady;
using weft::scripted::kSuccess;
using weft::scripted::Stream;

#pragma GCC visibility push(default)
extern "C" {

int cudaStreamCreateWithFlags(void** stream, unsigned) {
  *stream = Gpu::The().NewStream();
  return kSuccess;
}
int cudaStreamCreate(void** stream) { return cudaStreamCreateWithFlags(stream, 0); }
int cudaStreamDestroy(void* stream) {
  Gpu::The().EndStream(static_cast<Stream*>(stream));
  return kSuccess;
}
int cudaStreamSynchronize(void* stream) {
  Gpu::The().Resolve(stream).Drain();
  return kSuccess;
}
int cudaStreamWaitEvent(void* stream, void* event, unsigned) {
  auto* awaited = static_cast<Event*>(event);
  Gpu::The().Resolve(stream).Do(
      [awaited, record = awaited->recorded()] { awaited->Await(record); });
  return kSuccess;
}
int cudaLaunchHostFunc(void* stream, void (*function)(void*), void* argument) {
  Gpu::The().Resolve(stream).Do([=] { function(argument); });
  return kSuccess;
}
int cudaStreamIsCapturing(void*, int* status) {
  *status = 0;
  return kSuccess;
}
int cudaStreamGetCaptureInfo(void*, int* status, unsigned long long* id, void** graph, void**,
                             void**, size_t* dependencies) {
  *status = 0;
  if (id != nullptr) *id = 0;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = 0;
  return kSuccess;
}
int cudaStreamGetCaptureInfo_v2(void* stream, int* status, unsigned long long* id, void** graph,
                                void** dependencies, size_t* count) {
  return cudaStreamGetCaptureInfo(stream, status, id, graph, dependencies, nullptr, count);
}
int cudaThreadExchangeStreamCaptureMode(int*) { return kSuccess; }

int cudaEventCreateWithFlags(void** event, unsigned) {
  *event = new Event;
  return kSuccess;
}
int cudaEventCreate(void** event) { return cudaEventCreateWithFlags(event, 0); }
int cudaEventDestroy(void* event) {
  auto* ended = static_cast<Event*>(event);
  ended->Await(ended->recorded());
  delete ended;
  return kSuccess;
}
int cudaEventRecord(void* event, void* stream) {
  auto* recorded = static_cast<Event*>(event);
  Gpu::The().Resolve(stream).Do(
      [recorded, record = recorded->Record()] { recorded->Reach(record); });
  return kSuccess;
}
int cudaEventQuery(void* event) {
  auto* asked = static_cast<Event*>(event);
  return asked->IsReached(asked->recorded()) ? kSuccess : kNotReady;
}
int cudaEventSynchronize(void* event) {
  auto* awaited = static_cast<Event*>(event);
  awaited->Await(awaited->recorded());
  return kSuccess;
}

struct LaunchConfig {  // CUlaunchConfig
  unsigned grid[3], block[3], shared_bytes;
  void* stream;
};
// Where the variable is set, kernels end at once and move nothing: for what NCCL decides before it
// launches one, also of kernels that are not emulated.
int cuLaunchKernelEx(const LaunchConfig* config, void*, void**, void** extra) {
  static const bool skips = getenv("WEFT_SCRIPTED_GPU_SKIPS_KERNELS") != nullptr;
  if (skips) return kSuccess;
  const char* arguments = nullptr;
  size_t size = 0;
  constexpr uintptr_t kBuffer = 1, kSize = 2;
  for (; *extra != nullptr; extra += 2) {
    if (reinterpret_cast<uintptr_t>(*extra) == kBuffer) arguments = static_cast<char*>(extra[1]);
    if (reinterpret_cast<uintptr_t>(*extra) == kSize) size = *static_cast<size_t*>(extra[1]);
  }
  if (Gpu::The().kernels == nullptr) {
    fprintf(stderr, "scripted GPU: the kernels of this NCCL are not emulated\n");
    abort();
  }
  auto copy = std::make_shared<std::vector<char>>(arguments, arguments + size);
  Gpu::The().Resolve(config->stream).Do([copy] { EmulateKernel(*Gpu::The().kernels, *copy); });
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
