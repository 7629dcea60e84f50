// weft-ckpt convert: a checkpoint's parameters as a model of Hugging Face, and such a model as a
// checkpoint that weft-train goes on from.
#ifndef WEFT_TOOLS_CKPT_CONVERT_H_
#define WEFT_TOOLS_CKPT_CONVERT_H_

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/checkpoint/reader.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/config.h"
#include "trainer/huggingface/model_reader.h"

namespace weft::ckpt {

struct Converted {
  int64_t tensors = 0;  // that were read
  int64_t elements = 0;
};

// kFailedPrecondition: a checkpoint of before version 3, whose tensors have no shapes.
absl::StatusOr<std::unique_ptr<train::CheckpointReader>> OpenWithShapes(const std::string& path);

// What the checkpoint says of the run that wrote it: the model, the data.
absl::StatusOr<train::TrainConfig> ConfigOf(const train::Manifest& manifest);

// A run that begins with what another program has made.
struct ModelRun {
  // For each prefix ("parameters.", "adam.mean.") a buffer for each parameter.
  std::vector<std::pair<std::string, std::vector<train::ReadParameter>>> buffers;
  std::string optimizer;  // whose states are among them; kNoOptimizer: none
  int64_t step = 0;
};
// `run`/checkpoints/step-N, as of a run that has taken a global batch in each step, and
// `run`/config.toml.
absl::Status WriteRun(const train::TrainConfig& config, const ModelRun& model,
                      const std::string& run);

struct ToHuggingFace {
  std::string checkpoint;  // "runs/demo/checkpoints/step-00001000"
  std::string target;      // a folder that is not there, or empty
  train::DType dtype = train::DType::kF32;
  std::string tokenizer;  // empty: that of the run's data
};
absl::StatusOr<Converted> Convert(const ToHuggingFace& options);

struct FromHuggingFace {
  std::string source;
  std::string target;  // of the run: a folder that is not there, or empty
  // What the run will have: its model must be the source's, its data have the source's vocabulary.
  train::TrainConfig config;
};
// Writes `target`/checkpoints/step-00000000, without an optimizer's states, and
// `target`/config.toml.
absl::StatusOr<Converted> Convert(const FromHuggingFace& options);

}  // namespace weft::ckpt

#endif  // WEFT_TOOLS_CKPT_CONVERT_H_
