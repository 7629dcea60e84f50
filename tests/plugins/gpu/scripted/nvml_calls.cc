// The calls of libnvidia-ml.so.1 that NCCL makes, for one GPU without NVLink.
#include <cstring>

namespace {

constexpr int kSuccess = 0, kNotSupported = 3;
constexpr int kMajor = 8, kMinor = 0;

char the_device;

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

int nvmlInit_v2() { return kSuccess; }
int nvmlShutdown() { return kSuccess; }
const char* nvmlErrorString(int) { return "the scripted GPU does not have it"; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return kSuccess;
}
int nvmlDeviceGetHandleByIndex(unsigned, void** device) {
  *device = &the_device;
  return kSuccess;
}
int nvmlDeviceGetHandleByPciBusId(const char*, void** device) {
  *device = &the_device;
  return kSuccess;
}
int nvmlDeviceGetIndex(void*, unsigned* index) {
  *index = 0;
  return kSuccess;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = kMajor;
  *minor = kMinor;
  return kSuccess;
}
int nvmlDeviceGetPciInfo_v3(void*, void*) { return kNotSupported; }
int nvmlDeviceGetPciInfoExt(void*, void*) { return kNotSupported; }
int nvmlDeviceGetPcieLinkMaxSpeed(void*, unsigned*) { return kNotSupported; }
int nvmlDeviceGetCurrPcieLinkGeneration(void*, unsigned*) { return kNotSupported; }
int nvmlDeviceGetCurrPcieLinkWidth(void*, unsigned*) { return kNotSupported; }
int nvmlDeviceGetP2PStatus(void*, void*, int, int* status) {
  *status = 0;
  return kSuccess;
}
int nvmlDeviceGetNvLinkState(void*, unsigned, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemotePciInfo(void*, unsigned, void*) { return kNotSupported; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void*, unsigned, int*) { return kNotSupported; }
int nvmlDeviceGetNvLinkCapability(void*, unsigned, int, unsigned*) { return kNotSupported; }
int nvmlDeviceGetFieldValues(void*, int, void*) { return kNotSupported; }
int nvmlDeviceGetGpuFabricInfoV(void*, void*) { return kNotSupported; }
int nvmlDeviceGetPlatformInfo(void*, void*) { return kNotSupported; }

}  // extern "C"
#pragma GCC visibility pop
