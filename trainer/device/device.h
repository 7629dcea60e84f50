// What a run computes on (train.device), and the loops of a tensor's device.
//
// One binary serves machines with and without GPUs: nothing here includes CUDA. LibTorch's part for
// GPUs is loaded at run time from beside the LibTorch that this process has, which must be a build
// with CUDA; streams and events are c10's, by its table of device guards. See docs/gpu.md.
#ifndef WEFT_TRAINER_DEVICE_DEVICE_H_
#define WEFT_TRAINER_DEVICE_DEVICE_H_

#include <ATen/ATen.h>

#include <string>

#include "absl/status/statusor.h"
#include "base/units.h"
#include "trainer/config.h"
#include "trainer/kernels/kernels.h"

struct WeftStream;  // collectives/cuda/device_table.h

namespace weft::train {

// Makes `kind` what this process computes on; called before the first tensor of each run, on which
// a GPU's memory that the run before had is given back. `local_rank` chooses the GPU: modulo their
// number, so that ranks may share one. With kCuda, errors are kFailedPrecondition where LibTorch is
// a build without CUDA and kUnavailable where there is no driver or GPU; they name the folder, the
// version and what would be right.
// `loads_all`: CUDA loads all of its kernels now, and not each at its first use, where it may wait
// for kernels under way: one that waits for another rank's message, which this rank holds up by
// that (CUDA C++ programming guide, "Lazy loading").
absl::StatusOr<at::Device> OpenDevice(DeviceKind kind, int local_rank, bool loads_all = false);

// What the device of `tensor` computes with. Any thread, after OpenDevice.
const kernels::KernelTable& KernelsOf(const at::Tensor& tensor);

// Whether a GPU's way is taken for `tensor`: LibTorch's operations, collectives through copies in
// host memory. True of tensors that are not the CPU's, and with kCpuAten of all.
bool GoesDeviceWay(const at::Tensor& tensor);

// The stream that LibTorch computes on now; null on the CPU, as CUDA's default stream.
WeftStream* CurrentStream(at::Device device);

// A GPU's memory: what it has, what of that nobody has taken, and the most that this process's
// tensors took so far.
struct DeviceMemory {
  Bytes total, free, tensors_peak;
};
DeviceMemory MemoryOf(at::Device gpu);

// Where a GPU is in its host, as "0000:3B:00.0", whatever number CUDA_VISIBLE_DEVICES gives it in
// this process; where the driver does not say, that number. Empty for the CPU.
std::string AddressOf(at::Device device);

// "cpu (AVX-512)", "cuda:0 (LibTorch)".
std::string DescribeDevice(at::Device device);

}  // namespace weft::train

#endif  // WEFT_TRAINER_DEVICE_DEVICE_H_
