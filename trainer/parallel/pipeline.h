// Runs this rank's list of passes of a pipeline schedule (topology/job/pipeline_schedule.h).
//
// Sends are split from receives (MegaScale, section 3.2): a pass waits for its own input only,
// which was asked for while an earlier pass ran; its output is sent while the next pass runs.
// Messages carry activations forward and their gradients backward, and are told apart by tag. Used
// by one thread. Errors of messages keep their code.
#ifndef WEFT_TRAINER_PARALLEL_PIPELINE_H_
#define WEFT_TRAINER_PARALLEL_PIPELINE_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "topology/job/pipeline_schedule.h"
#include "trainer/groups/group.h"
#include "trainer/parallel/pipeline_bubble.h"

namespace weft::train {

// What the passes do. Tensors are activations or their gradients, contiguous, all of one shape.
class PipelineStage {
 public:
  virtual ~PipelineStage() = default;
  // `input` is undefined for the model's first chunk; the result is sent on, except the last
  // chunk's, which is ignored.
  virtual absl::StatusOr<at::Tensor> Forward(int chunk, int micro_batch, at::Tensor input) = 0;
  // `gradient`, of the chunk's output, is undefined for the model's last chunk. Returns that of its
  // input, ignored for the first.
  virtual absl::StatusOr<at::Tensor> Backward(int chunk, int micro_batch, at::Tensor gradient) = 0;
  virtual absl::Status Weight(int chunk, int micro_batch) = 0;
};

class PipelineRunner {
 public:
  // `group` is the pipeline axis, whose ranks are the stages, and outlives this object.
  // `receives_ahead`: passes after the running one whose receives are posted; 0: a pass posts its
  // receive when it is to run, as in the first Run on a GPU. There libraries make and load kernels,
  // which may wait for all that the GPU has been given: also for the kernel of a receive whose
  // message the other stage sends only after one of this stage's.
  PipelineRunner(const topology::PipelineSpec& spec, Group* group, int64_t rows, int64_t width,
                 const at::TensorOptions& options, int receives_ahead);

  absl::Status Run(absl::Span<const topology::PipelinePass> passes, PipelineStage& stage);
  // Times of the passes of the last Run, in their order.
  const std::vector<PassTime>& times() const { return times_; }

 private:
  // Where the input of a pass comes from, or its output goes to.
  struct Edge {
    enum Kind : uint8_t { kNone, kHere, kMessage } kind = kNone;
    int stage = 0;     // the other end
    int chunk = 0;     // of the other end
    uint32_t tag = 0;  // the same at both ends, as the channel
    uint32_t channel = 0;
  };
  struct Awaited {
    size_t pass = 0;
    at::Tensor tensor;
    Pending pending;
  };

  Edge Towards(const topology::PipelinePass& pass, bool output) const;
  uint32_t TagOf(const topology::PipelinePass& pass, int target_depth) const;
  // Posts the receives of passes up to `end` that are not posted yet.
  absl::Status PostReceives(absl::Span<const topology::PipelinePass> passes, size_t end);
  absl::StatusOr<at::Tensor> TakeInput(const topology::PipelinePass& pass);
  absl::Status HandOn(const topology::PipelinePass& pass, at::Tensor output);
  absl::Status ReapSends(bool all);

  const topology::PipelineSpec spec_;
  Group* const group_;
  const int stage_;
  const int64_t rows_, width_;
  const at::TensorOptions options_;
  const size_t receives_ahead_;
  std::deque<Awaited> awaited_;  // in the order of passes
  size_t posted_ = 0;            // passes whose receives are posted
  std::deque<Pending> sends_;
  // Outputs for another chunk of this rank.
  struct Kept {
    uint32_t tag = 0;
    at::Tensor tensor;
  };
  std::vector<Kept> kept_;
  bool has_run_ = false;
  std::vector<PassTime> times_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_PARALLEL_PIPELINE_H_
