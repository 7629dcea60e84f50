// The scripted GPU is a library that tests load in place of libcudart.so: it exports CUDA's calls
// under CUDA's names, with void* for its handles and int for its enumerations. NCCL has linked a
// CUDA runtime into itself; attaching replaces that one's functions by those of the same name. The
// management library NCCL finds by itself: libnvidia-ml.so.1 is the soname of this one.
#include <dlfcn.h>

#include <cctype>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "tests/plugins/gpu/scripted/detour.h"
#include "tests/plugins/gpu/scripted/gpu.h"

using weft::scripted::Detours;
using weft::scripted::Gpu;
using weft::scripted::KernelTable;
using weft::scripted::Layout;

namespace {

int NotEmulated(const char* name) {
  fprintf(stderr, "scripted GPU: %s is not emulated\n", name);
  return weft::scripted::kNotSupported;
}

// A call of this library; null: it is not emulated.
void* FindCall(const char* name) {
  Dl_info self{};
  if (dladdr(reinterpret_cast<void*>(&FindCall), &self) == 0) return nullptr;
  static void* library = dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  return dlsym(library, name);
}

// Null: those of this version are not emulated, but all else is.
std::unique_ptr<KernelTable> KernelsOf(void* nccl, const Detours& detours) {
  auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(nccl, "ncclGetVersion"));
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) return nullptr;
  auto layout = Layout::Of(version);
  const auto* rows = static_cast<const int*>(detours.Find("ncclDevFuncRowToId"));
  if (!layout || rows == nullptr) return nullptr;
  return std::make_unique<KernelTable>(*layout, rows);
}

absl::Status Attach(void* nccl) {
  auto detours = Detours::Of(nccl);
  if (!detours.ok()) return detours.status();
  Gpu::The().kernels = KernelsOf(nccl, *detours);
  for (const auto& [name, function] : detours->functions()) {
    if (!absl::StartsWith(name, "cuda") || name.size() < 5 || !isupper(name[4])) continue;
    void* call = FindCall(name.c_str());
    auto status = call != nullptr
                      ? Detours::Replace(function, call)
                      : Detours::ReplaceByNamed(function, strdup(name.c_str()), NotEmulated);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

// The driver's calls, which NCCL asks for by name.
int cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                     unsigned long long, int* found) {
  constexpr int kFound = 0, kNoSuchSymbol = 1;
  *function = FindCall(name);
  if (found != nullptr) *found = *function == nullptr ? kNoSuchSymbol : kFound;
  return weft::scripted::kSuccess;
}

int cudaGetDriverEntryPoint(const char* name, void** function, unsigned long long flags,
                            int* found) {
  return cudaGetDriverEntryPointByVersion(name, function, 0, flags, found);
}

// `nccl`: its handle of dlopen, before any call. Null, or why it cannot be.
const char* WeftAttachScriptedGpu(void* nccl) {
  static auto* error = new std::string;
  auto status = Attach(nccl);
  *error = std::string(status.message());
  return status.ok() ? nullptr : error->c_str();
}

}  // extern "C"
#pragma GCC visibility pop
