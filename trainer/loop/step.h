// One optimizer step, and one measurement of the validation loss: the model, its sharded parameters
// and the data brought together. No files, no printing.
#ifndef WEFT_TRAINER_LOOP_STEP_H_
#define WEFT_TRAINER_LOOP_STEP_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/trace.h"
#include "trainer/config.h"
#include "trainer/data/batch_loader.h"
#include "trainer/data/sampler.h"
#include "trainer/model/gpt.h"
#include "trainer/parallel/group.h"
#include "trainer/parallel/sharded.h"

namespace weft {

struct StepResult {
  double loss = 0;           // nats a token, mean over the global batch
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  double exposed_seconds = 0;  // this rank's wait for communication
  bool stop = false;           // some rank was asked to stop
};

class Stepper {
 public:
  // InvalidArgument when the batch does not divide by ranks and micro-batches. `trace` may be null.
  static absl::StatusOr<std::unique_ptr<Stepper>> Create(const TrainConfig& config, Group* group,
                                                         Trace* trace);

  ShardedParameters& parameters() { return *parameters_; }
  Gpt& model() { return *model_; }
  int64_t local_rows() const { return local_rows_; }
  int micro_steps() const { return micro_steps_; }

  // Initial parameters by the seed.
  absl::Status Initialize();
  // `step` counts from 1. Aborted, naming step and rank, when a loss or the gradient is not finite;
  // parameters are as before then. A rank whose batch could not be read takes part all the same, so
  // that none waits for it, and then every rank returns that batch's error, with parameters as
  // before.
  absl::StatusOr<StepResult> Step(int64_t step, const absl::StatusOr<Batch>& batch,
                                  bool stop_requested);
  // Mean loss of `batches` global batches of a sequential stream. A sample that a rank cannot read
  // is an error on every rank.
  absl::StatusOr<double> Validate(const SampleStream& stream, int64_t batches);

 private:
  Stepper(const TrainConfig& config, Group* group, Trace* trace);
  double RunMicroBatches(int64_t step, const Batch& batch);
  absl::StatusOr<StepResult> FinishStep(int64_t step, double loss, const absl::Status& batch_read,
                                        bool stop_requested);
  absl::StatusOr<double> SumLosses(const SampleStream& stream, int64_t batches);
  absl::Status ExplainNonFinite(int64_t step, double loss, double squares);
  void EnterUnit(int unit);

  const TrainConfig config_;
  Group* const group_;
  Trace* const trace_;
  int64_t local_rows_ = 0;  // samples of a step on this rank
  int micro_steps_ = 1;
  std::unique_ptr<ShardedParameters> parameters_;
  std::unique_ptr<Gpt> model_;
};

}  // namespace weft

#endif  // WEFT_TRAINER_LOOP_STEP_H_
