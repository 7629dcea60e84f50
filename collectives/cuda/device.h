// The GPU, where there is one: loads libweft-cuda.so, and says in a sentence why not where there is
// none.
#ifndef WEFT_COLLECTIVES_CUDA_DEVICE_H_
#define WEFT_COLLECTIVES_CUDA_DEVICE_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "collectives/cuda/device_table.h"

namespace weft::collectives {

class Device {
 public:
  // Loads `library`: a path, or a name that the dynamic loader finds. Empty: libweft-cuda.so beside
  // this program (../lib), then wherever the loader looks. kUnavailable when the library, the
  // driver or a GPU is absent; kFailedPrecondition when the library is of another version. It stays
  // loaded for the life of the process: CUDA does not like to be unloaded.
  static absl::StatusOr<Device> Load(absl::string_view library = "");

  const WeftDeviceTable& calls() const { return *table_; }
  int count() const { return count_; }  // GPUs, at least 1
  // "2 x NVIDIA H200, CUDA 13.0, NCCL 2.28.9"
  std::string Describe() const;

  // The status of a call of the table: Check(calls().SetDevice(0), "select GPU 0").
  absl::Status Check(int result, absl::string_view doing) const;

 private:
  Device(const WeftDeviceTable* table, int count) : table_(table), count_(count) {}
  const WeftDeviceTable* table_;
  int count_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_CUDA_DEVICE_H_
