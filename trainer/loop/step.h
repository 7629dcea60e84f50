// One optimizer step, and one measurement of the validation loss: the model, its sharded
// parameters, the pipeline and the data brought together. No files, no printing.
#ifndef WEFT_TRAINER_LOOP_STEP_H_
#define WEFT_TRAINER_LOOP_STEP_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/trace.h"
#include "topology/job/pipeline_schedule.h"
#include "trainer/config.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/sampler.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/loop/loss_scale.h"
#include "trainer/loop/pass_graphs.h"
#include "trainer/loop/step_result.h"
#include "trainer/loop/step_waits.h"
#include "trainer/model/context_axis.h"
#include "trainer/model/gpt.h"
#include "trainer/model/tensor_axis.h"
#include "trainer/parallel/parameter_sets.h"
#include "trainer/parallel/pipeline.h"
#include "trainer/parallel/schedule_replan.h"
#include "trainer/parallel/step_plan.h"

namespace weft::train {

class Stepper final : private PipelineStage {
 public:
  // `groups` and `trace` (may be null) outlive this object. See StepPlan::Make for errors.
  static absl::StatusOr<std::unique_ptr<Stepper>> Create(const TrainConfig& config,
                                                         ParallelGroups* groups, Trace* trace,
                                                         at::Device device = at::kCPU);

  ParameterSets& parameters() { return *parameters_; }
  // The model, where one rank holds it whole in host memory; else null.
  Gpt* whole_model();
  const StepPlan& plan() const { return plan_; }
  // What this rank keeps weights packed in, with the libraries of now.
  Bytes packed_bytes() const;
  // What multiplies matrices and what computes attention from now on.
  void SetLibraries(const GemmLibraries& gemm, const AttentionLibraries& attention) {
    for (const std::unique_ptr<Gpt>& chunk : chunks_) {
      chunk->set_gemm(gemm);
      chunk->set_attention(attention);
    }
  }

  // From now on passes are captured by `device` and launched as graphs. WhyNoGraphs has no reason
  // against it, but for train.device where a test plays one.
  void SetGraphs(std::unique_ptr<GraphDevice> device);

  // Called in each Step when all gradients are there, before any rank changes parameters or the
  // optimizer's state; its error is the step's.
  void set_before_update(std::function<absl::Status()> function) {
    before_update_ = std::move(function);
  }

  // The lists of passes of all stages.
  const topology::PipelineSchedule& schedule() const { return schedule_; }
  // Other ones from the next step on, on all ranks together. FailedPrecondition where they are none
  // for this pipeline; those that there were then stay. Not after SetGraphs.
  absl::Status SetSchedule(topology::PipelineSchedule schedule);

  // To be saved with the parameters.
  LossScale& loss_scale() { return loss_scale_; }

  // Initial parameters by the seed.
  absl::Status Initialize();
  // `step` counts from 1. Aborted, naming step and rank, when a loss or the gradient is not finite,
  // or `skipped` where the config says so; parameters are as before then. A rank whose batch could
  // not be read takes part all the same, so that none waits for it, and then every rank returns
  // that batch's error, with parameters as before.
  absl::StatusOr<StepResult> Step(int64_t step, const absl::StatusOr<Batch>& batch,
                                  bool stop_requested);
  // Mean loss of `batches` global batches of a sequential stream. A sample that a rank cannot read
  // is an error on every rank.
  absl::StatusOr<double> Validate(const SampleStream& stream, int64_t batches);

 private:
  struct Tokens {
    at::Tensor inputs;   // [rows, tokens held]
    at::Tensor targets;  // [rows * tokens held]
  };
  // A micro-batch whose backward pass has not run.
  struct Held {
    at::Tensor input;   // of the chunk; requires a gradient where it is an activation
    at::Tensor output;  // with the graph; the model's last: the losses
    DeferredGradients deferred;
  };

  Stepper(const TrainConfig& config, const StepPlan& plan, topology::PipelineSchedule schedule,
          ParallelGroups* groups, Trace* trace, at::Device device);

  void InitializeStore(ParameterStore& store) const;
  void SetHooks(ForwardOptions& options);
  // The options of a pass of the chunk that are the same in every step. `targets`: of the last
  // chunk; `sink`: null where no backward pass follows.
  ForwardOptions OptionsOf(int chunk, const at::Tensor& targets, GradientSink* sink) const;
  // The device's part of the passes. Undefined: the gradient of the model's input.
  at::Tensor RunForward(int chunk, at::Tensor input, const ForwardOptions& options, Held& held);
  at::Tensor RunBackward(int chunk, Held& held, at::Tensor gradient);
  PassPair PassesOf(int chunk);  // to be captured
  absl::StatusOr<at::Tensor> Forward(int chunk, int micro_batch, at::Tensor input) override;
  absl::StatusOr<at::Tensor> Backward(int chunk, int micro_batch, at::Tensor gradient) override;
  absl::Status Weight(int chunk, int micro_batch) override;

  bool IsFirst(int chunk) const { return DepthOf(plan_.pipeline, stage(), chunk) == 0; }
  bool IsLast(int chunk) const {
    return DepthOf(plan_.pipeline, stage(), chunk) == plan_.pipeline.depth() - 1;
  }
  int stage() const { return groups_->pipeline->rank(); }
  // The passes of this stage in a step.
  const std::vector<topology::PipelinePass>& passes() const {
    return schedule_[static_cast<size_t>(stage())];
  }
  Held& HeldOf(int chunk, int micro_batch) {
    return held_[static_cast<size_t>(chunk * plan_.pipeline.micro_batches + micro_batch)];
  }
  void BeginGraphs();
  // `tokens`, which stay where they are, are those of the batch under way. All at once: the host
  // waits for a copy to a GPU.
  void SetTokens(const std::vector<int64_t>& tokens);
  // The tokens that this rank holds of a micro-batch.
  Tokens Cut(int micro_batch) const;
  absl::StatusOr<StepResult> FinishStep(int64_t step, double loss, const absl::Status& batch_read,
                                        bool stop_requested);
  // Over the rank's part of each batch, into loss_.
  absl::Status SumLosses(const SampleStream& stream, int64_t batches);
  absl::StatusOr<StepResult> LeaveOut(StepResult result, const absl::Status& reason);
  absl::Status ExplainNonFinite(int64_t step, double loss, double squares);
  void RecordNotFinite();

  const TrainConfig config_;
  const at::Device device_;
  const StepPlan plan_;
  topology::PipelineSchedule schedule_;
  const std::vector<topology::PipelinePass> forward_passes_;  // of a validation batch
  ParallelGroups* const groups_;
  Trace* const trace_;
  std::optional<TensorAxis> axis_;
  std::optional<ContextAxis> context_;
  std::optional<ExpertAxis> experts_;
  std::unique_ptr<ParameterSets> parameters_;
  std::vector<std::unique_ptr<Gpt>> chunks_;
  PipelineRunner runner_;
  StepWaits waits_;
  ScheduleReplan replan_;
  LossScale loss_scale_;
  std::function<absl::Status()> before_update_;  // may be null
  std::unique_ptr<PassGraphs> graphs_;           // null: there are none

  // State of the batch under way.
  // [local rows, columns], on the device; on the CPU a view of what was read.
  at::Tensor tokens_;
  int64_t columns_ = 0;
  bool training_ = false;
  int64_t step_ = 0;
  bool own_is_finite_ = true;  // of this rank, in the last step that was not finite
  // One double on the device, which passes do not wait for: the sum over this rank's samples, where
  // it has the end of the model.
  at::Tensor loss_;
  RouterTotals router_;
  std::vector<Held> held_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_STEP_H_
