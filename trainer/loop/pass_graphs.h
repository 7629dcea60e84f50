// The passes of a step as graphs (device/graphs.h): after some steps each pass that can be is
// captured, and from then on launched as one.
//
//   steps 1 to 3  kernel by kernel: libraries choose their kernels and take their memory
//   step 4        BeginStep captures the passes, pairs of a forward and a backward pass; none runs
//   from then on  Forward and Backward copy what a pass reads to where its graph reads it, launch
//                 the graph, and copy out what it gives
//
// Micro-batches under way at the same time hold their activations at different addresses: each has
// a place, with graphs and memory of its own. A pass that writes gradients has another graph than
// those that add to them.
//
// Everything that a graph does not read from memory is fixed when it is captured: BeginStep is told
// of it, and a change drops all graphs and begins anew. The host's part of a pass, the sink's Begin
// and End, is recorded and repeated. Where a capture fails nothing has run by then, so that the
// step goes on kernel by kernel.
//
// Used by the thread that computes.
#ifndef WEFT_TRAINER_LOOP_PASS_GRAPHS_H_
#define WEFT_TRAINER_LOOP_PASS_GRAPHS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "topology/job/pipeline_schedule.h"
#include "trainer/config.h"
#include "trainer/device/graphs.h"
#include "trainer/model/gradient_sink.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

// Why no pass of this run can be captured; empty: some can.
std::string WhyNoGraphs(const TrainConfig& config, const StepPlan& plan);

// A chunk's pair of passes: a forward pass, and the backward pass behind it. Neither calls a
// collective or reads from the device.
struct PassPair {
  std::vector<at::Tensor> inputs;  // what `forward` reads
  // Makes the output, without LibTorch's graph. The gradients of both passes go to `sink`.
  std::function<at::Tensor(GradientSink* sink)> forward;
  // From the gradient of the output, which the last chunk does not read, to that of the input;
  // undefined for the first chunk.
  std::function<at::Tensor(const at::Tensor& gradient)> backward;
};

class PassGraphs {
 public:
  static constexpr int kWarmUpSteps = 3;

  // `passes`: of a step, this rank's. `spares_ends`: not the first and the last micro-batch, whose
  // passes wait for other ranks, or start collectives. `make` makes a pair of a chunk, with inputs
  // of the step's shapes that a pass could read. `sink`, of all pairs, outlives this object; its
  // gradients stay at their addresses.
  PassGraphs(std::unique_ptr<GraphDevice> device, absl::Span<const topology::PipelinePass> passes,
             bool spares_ends, std::function<PassPair(int chunk)> make, GradientSink* sink);
  ~PassGraphs();

  // Before a step's first pass. `fixed` describes what no pass reads from memory: shapes, scales.
  // An error says why the passes cannot be captured: nothing has run, and this object has no more
  // use.
  absl::Status BeginStep(const std::string& fixed);
  // Whether Forward and Backward take this micro-batch in this step; else the passes run as ever.
  bool Has(int chunk, int micro_batch) const;
  // `inputs`: as PassPair's. The results are copies.
  absl::StatusOr<at::Tensor> Forward(int chunk, int micro_batch,
                                     absl::Span<const at::Tensor> inputs);
  absl::StatusOr<at::Tensor> Backward(int chunk, int micro_batch, const at::Tensor& gradient);

 private:
  class RecordedSink;
  struct Pair;
  // Which graphs a micro-batch's passes need.
  struct Need {
    bool is_captured = true;
    int chunk = 0;
    int place = 0;  // another one than of the chunk's other micro-batches under way
    // The first pass of its kind of the chunk in a step: gradients are written, not added to.
    bool writes_forward = false, writes_backward = false;
    bool operator==(const Need&) const = default;
  };

  void FindNeeds(absl::Span<const topology::PipelinePass> passes, bool spares_ends);
  size_t IndexOf(int chunk, int micro_batch) const {
    return static_cast<size_t>(chunk) * micro_batches_ + static_cast<size_t>(micro_batch);
  }
  Pair& PairOf(int chunk, int micro_batch);
  void Drop();
  absl::Status CaptureAll();
  absl::Status CapturePair(const Need& need);

  const std::unique_ptr<GraphDevice> device_;
  const std::function<PassPair(int chunk)> make_;
  GradientSink& sink_;
  size_t micro_batches_ = 0;
  std::vector<Need> needs_;  // by IndexOf
  std::vector<std::unique_ptr<Pair>> pairs_;
  std::vector<int> pair_of_;  // by IndexOf; -1: none
  std::string fixed_;
  int steps_ = 0;  // since `fixed_` changed
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_PASS_GRAPHS_H_
