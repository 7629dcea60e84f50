// Work for a GPU that is captured once and launched as often as wanted: a CUDA graph. One launch
// takes the host some 10 us, however many kernels there are in it.
//
// A graph keeps the addresses of all that it reads and writes. What it makes itself is of a pool of
// memory that it may share with graphs that never run, or hold results, beside it. Used by the
// thread that computes.
#ifndef WEFT_TRAINER_DEVICE_GRAPHS_H_
#define WEFT_TRAINER_DEVICE_GRAPHS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "trainer/cuda/graph_table.h"

namespace weft::train {

class DeviceGraph {
 public:
  virtual ~DeviceGraph() = default;
  // On the stream that LibTorch computes on, behind what that has been given.
  virtual absl::Status Launch() = 0;
};

// What captures: a GPU, or a test's stand-in.
class GraphDevice {
 public:
  virtual ~GraphDevice() = default;
  // Runs `body`, which throws nothing, on a stream of its own that executes nothing of what it is
  // given. Memory for tensors comes from the pool with that number meanwhile. Errors: `body`'s own,
  // or Internal with the call of CUDA's that failed; then nothing is left of the capture.
  virtual absl::StatusOr<std::unique_ptr<DeviceGraph>> Capture(
      uint64_t pool, const std::function<absl::Status()>& body) = 0;
};

// By libweft-train-cuda.so, which is to be beside this program: kUnavailable where it is not,
// kFailedPrecondition where it is of another version, or for another LibTorch.
absl::StatusOr<std::unique_ptr<GraphDevice>> OpenGraphs(at::Device gpu);
// By `table`, which outlives what is returned.
std::unique_ptr<GraphDevice> GraphsBy(const WeftGraphTable* table, at::Device device);

}  // namespace weft::train

#endif  // WEFT_TRAINER_DEVICE_GRAPHS_H_
