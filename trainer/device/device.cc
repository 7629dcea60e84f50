#include "trainer/device/device.h"

#include <ATen/Context.h>
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <torch/version.h>

#include <array>
#include <atomic>
#include <filesystem>
#include <stdexcept>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/module.h"
#include "base/status.h"
#include "trainer/cuda/fused_library.h"
#include "trainer/device/aten_kernels.h"

namespace weft::train {
namespace {

std::atomic<bool> cpu_goes_by_aten = false;

constexpr char kMostQueues[] = "32";  // that CUDA has for the kernels of a process

// The folder of the LibTorch that this process has loaded.
std::string LibTorchFolder() {
  Dl_info about;
  const void* known = reinterpret_cast<const void*>(&at::globalContext);
  if (dladdr(known, &about) == 0 || about.dli_fname == nullptr) return "";
  std::error_code error;
  const auto path = std::filesystem::weakly_canonical(about.dli_fname, error);
  return error ? "" : path.parent_path().string();
}

absl::Status LoadCuda() {
  constexpr char kRight[] =
      "; train.device = cuda needs LibTorch " TORCH_VERSION
      " with CUDA, its lib folder first in LD_LIBRARY_PATH (docs/gpu.md); train.device = cpu needs "
      "none";
  const std::string folder = LibTorchFolder();
  const std::string library = absl::StrCat(folder, "/libtorch_cuda.so");
  std::error_code error;
  if (!std::filesystem::exists(library, error)) {
    return absl::FailedPreconditionError(absl::StrCat("the LibTorch in ", folder,
                                                      " is a build without CUDA: it has no ",
                                                      "libtorch_cuda.so", kRight));
  }
  if (dlopen(library.c_str(), RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot load ", library, ": ", dlerror(), kRight));
  }
  if (!at::hasCUDA()) {
    return absl::FailedPreconditionError(
        absl::StrCat(library, " does not register CUDA with the LibTorch of this process", kRight));
  }
  return absl::OkStatus();
}

void* CudaStream() {
  const c10::impl::DeviceGuardImplInterface* guard = c10::impl::getDeviceGuardImpl(at::kCUDA);
  return guard->getStream(guard->getDevice()).native_handle();
}
[[noreturn]] void ThrowNotLaunched(const char* kernel, const char* reason) {
  throw std::runtime_error(absl::StrCat("the kernel ", kernel, " was not launched: ", reason));
}

// LibTorch's operations, and our own kernels where their library is beside this program.
kernels::KernelTable MakeCudaKernels() {
  kernels::KernelTable table = AtenKernels(at::kCUDA);
  constexpr char kName[] = "libweft-train-cuda.so";
  const absl::StatusOr<void*> handle =
      LoadModule(kName, "it is built by `tools/dev build cuda` on a machine with a CUDA toolkit");
  if (!handle.ok()) {
    WEFT_LOG_WARN("a GPU's fused kernels are missing, LibTorch's operations go in their place: ",
                  handle.status().message());
    return table;
  }
  const auto entry =
      reinterpret_cast<decltype(&weft_fused_library)>(dlsym(*handle, "weft_fused_library"));
  const WeftFusedLibrary* library = entry == nullptr ? nullptr : entry();
  if (library == nullptr || library->version != kWeftFusedVersion ||
      library->table_size != sizeof(kernels::KernelTable)) {
    WEFT_LOG_WARN(kName,
                  " is of another version than this program, which does without it; build "
                  "both from one source");
    return table;
  }
  library->Install(&table, CudaStream, ThrowNotLaunched);
  return table;
}
const kernels::KernelTable& CudaKernels() {
  static const kernels::KernelTable table = MakeCudaKernels();
  return table;
}

absl::StatusOr<at::Device> OpenCuda(int local_rank, bool loads_all) {
  // CUDA reads these once. Streams that share a queue wait for each other, and a message's kernel
  // waits for its peer's.
  (void)setenv("CUDA_DEVICE_MAX_CONNECTIONS", kMostQueues, /*overwrite=*/0);
  if (loads_all) (void)setenv("CUDA_MODULE_LOADING", "EAGER", /*overwrite=*/0);
  WEFT_RETURN_IF_ERROR(LoadCuda());
  const int gpus = at::detail::getCUDAHooks().deviceCount();
  if (gpus <= 0) {
    return absl::UnavailableError(
        "train.device = cuda: no GPU that this process may use; nvidia-smi lists those with a "
        "driver, CUDA_VISIBLE_DEVICES hides them");
  }
  at::globalContext().lazyInitDevice(at::kCUDA);
  const at::Device device(at::kCUDA, static_cast<at::DeviceIndex>(local_rank % gpus));
  c10::impl::getDeviceGuardImpl(at::kCUDA)->setDevice(device);
  // What LibTorch keeps of it would be missing in what is free on the GPU (MemoryOf).
  c10::getDeviceAllocator(at::kCUDA)->emptyCache();
  return device;
}

}  // namespace

absl::StatusOr<at::Device> OpenDevice(DeviceKind kind, int local_rank, bool loads_all) {
  cpu_goes_by_aten = kind == DeviceKind::kCpuAten;
  if (kind != DeviceKind::kCuda) return at::Device(at::kCPU);
  try {
    return OpenCuda(local_rank, loads_all);
  } catch (const c10::Error& error) {
    return absl::UnavailableError(
        absl::StrCat("train.device = cuda: ", error.what_without_backtrace()));
  }
}

const kernels::KernelTable& KernelsOf(const at::Tensor& tensor) {
  if (tensor.is_cuda()) return CudaKernels();
  return GoesDeviceWay(tensor) ? AtenKernels(tensor.device().type()) : kernels::Kernels();
}

bool GoesDeviceWay(const at::Tensor& tensor) { return !tensor.is_cpu() || cpu_goes_by_aten; }

WeftStream* CurrentStream(at::Device device) {
  return device.is_cuda() ? static_cast<WeftStream*>(CudaStream()) : nullptr;
}

DeviceMemory MemoryOf(at::Device gpu) {
  c10::DeviceAllocator* const allocator = c10::getDeviceAllocator(gpu.type());
  const auto [free, total] = allocator->getMemoryInfo(gpu.index());
  const c10::CachingDeviceAllocator::DeviceStats statistics =
      allocator->getDeviceStats(gpu.index());
  constexpr auto kAll = static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
  return {Bytes(static_cast<int64_t>(total)), Bytes(static_cast<int64_t>(free)),
          Bytes(statistics.allocated_bytes.at(kAll).peak)};
}

// By the driver, as LibTorch does not say.
std::string AddressOf(at::Device device) {
  if (!device.is_cuda()) return "";
  void* const driver = dlopen("libcuda.so.1", RTLD_LAZY);
  const auto call = [driver](const char* name) {
    return driver == nullptr ? nullptr : dlsym(driver, name);
  };
  const auto get = reinterpret_cast<int (*)(int* gpu, int number)>(call("cuDeviceGet"));
  const auto address_of =
      reinterpret_cast<int (*)(char* address, int size, int gpu)>(call("cuDeviceGetPCIBusId"));
  int gpu = 0;
  std::array<char, 32> address = {};
  const bool is_known = get != nullptr && address_of != nullptr && get(&gpu, device.index()) == 0 &&
                        address_of(address.data(), static_cast<int>(address.size()), gpu) == 0;
  return is_known ? address.data() : absl::StrCat(device.index());
}

std::string DescribeDevice(at::Device device) {
  return absl::StrCat(device.str(), " (", KernelsOf(at::empty({0}, device)).instruction_set, ")");
}

}  // namespace weft::train
