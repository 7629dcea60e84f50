// The model that a run left, on one process, whatever layout it was trained in.
#ifndef WEFT_TRAINER_GENERATE_TRAINED_MODEL_H_
#define WEFT_TRAINER_GENERATE_TRAINED_MODEL_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/config.h"
#include "trainer/data/tokenizer.h"
#include "trainer/model/gpt.h"

namespace weft::train {

// The whole model of a checkpoint, tensors in the order of GptParameters(config), in the type that
// the model computes in.
absl::StatusOr<std::vector<at::Tensor>> LoadModel(const std::string& path,
                                                  const ModelConfig& config, Precision precision);

struct TrainedModel {
  std::string checkpoint;  // its folder
  int64_t step = 0;
  Precision precision = Precision::kFp32;  // that the model computes in
  int threads = 1;
  std::unique_ptr<Gpt> model;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<std::string> passed_over;  // newer checkpoints that are not whole, and why
};

struct TrainedModelOptions {
  std::optional<Precision> precision;  // none: that of the run
  std::string tokenizer;               // file; empty: that of the run
  int threads = 0;  // that compute in this process from now on; 0: OMP_NUM_THREADS, or every core's
};

// `path`: a checkpoint's folder, the folder of a run, of which the newest whole checkpoint is
// taken, or its folder `checkpoints`. The tokenizer is RUN/model/tokenizer.model, or that of the
// dataset. NotFound names what is missing and where it was looked for; DataLoss a damaged file.
absl::StatusOr<TrainedModel> LoadTrainedModel(const std::string& path,
                                              const TrainedModelOptions& options);

}  // namespace weft::train

#endif  // WEFT_TRAINER_GENERATE_TRAINED_MODEL_H_
