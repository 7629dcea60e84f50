#include "collectives/cuda/device.h"

#include <dlfcn.h>

#include <array>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/module.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

constexpr char kLibraryName[] = "libweft-cuda.so";
constexpr char kHint[] = "It is built by `tools/dev build cuda` on a machine with a CUDA toolkit";

}  // namespace

absl::StatusOr<Device> Device::Load(absl::string_view library) {
  absl::StatusOr<void*> loaded = LoadModule(kLibraryName, kHint, library);
  if (!loaded.ok()) return Annotate(loaded.status(), "no GPU support");
  void* handle = *loaded;
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
