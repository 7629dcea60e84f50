// CUDA's calls about the device: one, of compute capability 8.0, with nothing that is optional.
#include <cstdio>
#include <cstring>

#include "tests/plugins/gpu/scripted/gpu.h"

using weft::scripted::Gpu;
using weft::scripted::kCudaVersion;
using weft::scripted::kInvalidValue;
using weft::scripted::kSuccess;

#pragma GCC visibility push(default)
extern "C" {

int cudaGetDeviceCount(int* count) {
  *count = 1;
  return kSuccess;
}
int cudaGetDevice(int* device) {
  *device = 0;
  return kSuccess;
}
int cudaSetDevice(int device) { return device == 0 ? kSuccess : kInvalidValue; }
int cudaDriverGetVersion(int* version) {
  *version = kCudaVersion;
  return kSuccess;
}
int cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }
int cudaGetLastError() { return kSuccess; }
const char* cudaGetErrorString(int) { return "an error of the scripted GPU"; }
int cudaDeviceSetLimit(int, size_t) { return kSuccess; }
int cudaDeviceSynchronize() {
  Gpu::The().Drain();
  return kSuccess;
}
int cudaDeviceGetPCIBusId(char* bus_id, int length, int) {
  snprintf(bus_id, static_cast<size_t>(length), "00f0:01:00.0");
  return kSuccess;
}
int cudaDeviceGetAttribute(int* value, int attribute, int) {
  constexpr int kMajor = 75, kMinor = 76, kSharedMemory = 97, kMultiprocessors = 16;
  *value = attribute == kMajor             ? 8
           : attribute == kMinor           ? 0
           : attribute == kSharedMemory    ? 164 << 10
           : attribute == kMultiprocessors ? 16
                                           : 0;
  return kSuccess;
}

int cudaGetDeviceProperties(void* properties, int) {
  // What is asked for, at its place in cudaDeviceProp.
  constexpr size_t kMemory = 288, kWarpSize = 308, kMajor = 360;
  auto put = [&](size_t offset, auto value) {
    memcpy(static_cast<char*>(properties) + offset, &value, sizeof value);
  };
  memset(properties, 0, kMajor + 2 * sizeof(int));
  strcpy(static_cast<char*>(properties), "the scripted GPU");
  put(kMemory, Gpu::kMemoryBytes);
  put(kWarpSize, 32);
  put(kMajor, 8);
  return kSuccess;
}

int cudaGetDeviceProperties_v2(void* properties, int device) {
  return cudaGetDeviceProperties(properties, device);
}

int cudaFuncGetAttributes(void*, const void*) { return kSuccess; }  // all zero, as the asker's are
int cudaFuncSetAttribute(const void*, int, int) { return kSuccess; }
int cudaGetFuncBySymbol(void** function, const void* symbol) {
  *function = const_cast<void*>(symbol);
  return kSuccess;
}

// The driver's calls, which NCCL asks for by name.
int cuGetErrorString(int, const char** text) {
  *text = "an error of the scripted GPU's driver";
  return kSuccess;
}
int cuGetErrorName(int error, const char** name) { return cuGetErrorString(error, name); }
int cuCtxGetDevice(int* device) { return cudaGetDevice(device); }
int cuDeviceGet(int* device, int) {
  *device = 0;
  return kSuccess;
}
int cuDeviceGetAttribute(int* value, int attribute, int device) {
  return cudaDeviceGetAttribute(value, attribute, device);
}
int cuDeviceGetUuid(char* uuid, int) {
  memset(uuid, 1, 16);
  return kSuccess;
}
int cuCtxGetCurrent(void** context) {
  static char the_context;
  *context = &the_context;
  return kSuccess;
}
int cuCtxSetCurrent(void*) { return kSuccess; }
int cuMemGetAllocationGranularity(size_t* bytes, const void*, int) {
  *bytes = 2 << 20;
  return kSuccess;
}
int cuMemGetAddressRange(void** base, size_t* size, void* pointer) {
  auto found = Gpu::The().Find(pointer);
  if (!found) return kInvalidValue;
  *base = found->address;
  *size = found->size;
  return kSuccess;
}

}  // extern "C"
#pragma GCC visibility pop
