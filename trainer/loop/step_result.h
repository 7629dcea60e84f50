// What came of an optimizer step, and of a measurement of the validation loss.
#ifndef WEFT_TRAINER_LOOP_STEP_RESULT_H_
#define WEFT_TRAINER_LOOP_STEP_RESULT_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace weft::train {

// This rank's wait for communication, by axis, in seconds. What the pipeline's schedule makes it
// wait for is not part of it (StepResult::bubble).
struct ExposedSeconds {
  double data = 0;
  double tensor = 0;
  double context = 0;
  double expert = 0;
  double pipeline = 0;
  double total() const { return data + tensor + context + expert + pipeline; }
};

struct StepResult {
  double loss = 0;           // nats a token, mean over the global batch
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  // With experts, means over tokens and layers; and the part of choices that found no place.
  double balance_loss = 0;
  double router_z_loss = 0;
  double dropped = 0;
  ExposedSeconds exposed;
  // The bubble of this rank, in seconds, and of all stages, as a part of their time
  // (parallel/pipeline_bubble.h); 0 without a pipeline. None: a GPU has the passes.
  struct Bubble {
    double seconds = 0, share = 0;
  };
  std::optional<Bubble> bubble;
  // What came of planning the pipeline anew before the step; empty: it was not.
  std::string replanned;
  std::string skipped;  // why the step was left out, with its number; empty: it was not
  bool stop = false;    // some rank was asked to stop
};

// In nats a token.
struct ValidationLoss {
  double mean = 0;  // of the datasets' losses, weighted by their shares in training
  // Prefix and loss of each dataset; empty where there is one alone.
  std::vector<std::pair<std::string, double>> by_dataset;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_STEP_RESULT_H_
