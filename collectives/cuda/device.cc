#include "collectives/cuda/device.h"

#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

constexpr char kLibraryName[] = "libweft-cuda.so";

// <folder of this program>/../lib/libweft-cuda.so, where a build and an installation put it.
std::string BesideThisProgram() {
  std::array<char, 4096> path{};
  ssize_t length = readlink("/proc/self/exe", path.data(), path.size() - 1);
  if (length <= 0) return "";
  std::string program(path.data(), static_cast<size_t>(length));
  return absl::StrCat(program.substr(0, program.rfind('/')), "/../lib/", kLibraryName);
}

absl::StatusOr<void*> Open(absl::string_view library) {
  std::vector<std::string> candidates;
  if (!library.empty()) {
    candidates.emplace_back(library);
  } else {
    candidates = {BesideThisProgram(), kLibraryName};
  }
  std::string reasons;
  for (const std::string& candidate : candidates) {
    if (candidate.empty()) continue;
    if (void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
      return handle;
    }
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", dlerror());
  }
  return absl::UnavailableError(
      absl::StrCat("no GPU support: ", reasons,
                   ". It is built by `tools/dev build cuda` on a machine with a CUDA toolkit"));
}

}  // namespace

absl::StatusOr<Device> Device::Load(absl::string_view library) {
  WEFT_ASSIGN_OR_RETURN(void* handle, Open(library));
  auto entry = reinterpret_cast<const WeftDeviceTable* (*)()>(dlsym(handle, "weft_device_table"));
  if (entry == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat(library, " is no libweft-cuda.so: it has no symbol weft_device_table"));
  }
  const WeftDeviceTable* table = entry();
  if (table->version != kWeftDeviceTableVersion || table->size != sizeof(WeftDeviceTable)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "libweft-cuda.so has interface %u of %u bytes, this program needs %u of %u; build both "
        "from one source",
        table->version, table->size, kWeftDeviceTableVersion, sizeof(WeftDeviceTable)));
  }
  int count = 0;
  if (table->DeviceCount(&count) != 0) {
    return absl::UnavailableError(absl::StrCat("no GPU: ", table->LastError()));
  }
  if (count == 0) return absl::UnavailableError("no GPU: the CUDA driver lists none");
  return Device(table, count);
}

std::string Device::Describe() const {
  std::array<char, 256> name{};
  if (table_->DeviceName(0, name.data(), name.size()) != 0) return table_->LastError();
  return absl::StrFormat("%d x %s, CUDA %d.%d, NCCL %d.%d.%d", count_, name.data(),
                         table_->cuda_version / 1000, table_->cuda_version % 1000 / 10,
                         table_->nccl_version / 10000, table_->nccl_version / 100 % 100,
                         table_->nccl_version % 100);
}

absl::Status Device::Check(int result, absl::string_view doing) const {
  if (result == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat(doing, ": ", table_->LastError()));
}

}  // namespace weft::collectives
