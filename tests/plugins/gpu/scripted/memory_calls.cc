// CUDA's calls about memory: all of it is the CPU's, and a copy is a memmove in its stream's turn.
#include <cstring>
#include <vector>

#include "tests/plugins/gpu/scripted/gpu.h"

using weft::scripted::Gpu;
using weft::scripted::kSuccess;
using weft::scripted::MemoryType;

#pragma GCC visibility push(default)
extern "C" {

int cudaMalloc(void** address, size_t size) {
  return Gpu::The().Allocate(address, size, MemoryType::kDevice);
}
int cudaFree(void* address) {
  if (address != nullptr) Gpu::The().Drain();
  return Gpu::The().Free(address);
}
int cudaHostAlloc(void** address, size_t size, unsigned) {
  return Gpu::The().Allocate(address, size, MemoryType::kHost);
}
int cudaFreeHost(void* address) { return Gpu::The().Free(address); }
int cudaHostRegister(void*, size_t, unsigned) { return kSuccess; }
int cudaHostUnregister(void*) { return kSuccess; }
int cudaHostGetDevicePointer(void** device, void* host, unsigned) {
  *device = host;
  return kSuccess;
}
int cudaMemPoolCreate(void** pool, const void*) {
  static char the_pool;
  *pool = &the_pool;
  return kSuccess;
}
int cudaMemPoolDestroy(void*) { return kSuccess; }
int cudaMemPoolSetAttribute(void*, int, void*) { return kSuccess; }
int cudaMallocAsync(void** address, size_t size, void*) { return cudaMalloc(address, size); }
int cudaMallocFromPoolAsync(void** address, size_t size, void*, void*) {
  return cudaMalloc(address, size);
}
int cudaFreeAsync(void* address, void* stream) {
  Gpu::The().Resolve(stream).Do([address] { Gpu::The().Free(address); });
  return kSuccess;
}
int cudaPointerGetAttributes(void* attributes, const void* pointer) {
  struct {
    int type, device;
    const void *device_pointer, *host_pointer;
  } known{};
  if (auto found = Gpu::The().Find(pointer)) {
    known.type = static_cast<int>(found->type);
    known.device_pointer = pointer;
    if (found->type == MemoryType::kHost) known.host_pointer = pointer;
  }
  memcpy(attributes, &known, sizeof(known));
  return kSuccess;
}

int cudaMemcpyAsync(void* to, const void* from, size_t size, int, void* stream) {
  // Memory that CUDA does not know may change once this returns: it is read now.
  if (!Gpu::The().Find(from)) {
    const char* bytes = static_cast<const char*>(from);
    Gpu::The().Resolve(stream).Do([to, copy = std::vector<char>(bytes, bytes + size)] {
      memcpy(to, copy.data(), copy.size());
    });
  } else {
    Gpu::The().Resolve(stream).Do([=] { memmove(to, from, size); });
  }
  return kSuccess;
}
int cudaMemcpy(void* to, const void* from, size_t size, int kind) {
  cudaMemcpyAsync(to, from, size, kind, nullptr);
  Gpu::The().Resolve(nullptr).Drain();
  return kSuccess;
}
int cudaMemsetAsync(void* to, int value, size_t size, void* stream) {
  Gpu::The().Resolve(stream).Do([=] { memset(to, value, size); });
  return kSuccess;
}
int cudaMemset(void* to, int value, size_t size) {
  cudaMemsetAsync(to, value, size, nullptr);
  Gpu::The().Resolve(nullptr).Drain();
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
