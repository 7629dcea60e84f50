// The parameters of a Hugging Face model: model.safetensors, or the files that
// model.safetensors.index.json lists.
#ifndef WEFT_TRAINER_HUGGINGFACE_MODEL_READER_H_
#define WEFT_TRAINER_HUGGINGFACE_MODEL_READER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "trainer/config.h"

namespace weft::train {

struct ReadParameter {
  std::string name;  // ours
  std::vector<int64_t> shape;
  std::vector<float> values;
};

// Every parameter of `config`'s model, in the order of GptParameters(config). Tensors of fp16 and
// bf16 are widened. Nothing is guessed: a config.json that says otherwise than `config`, a tensor
// that is missing, of another shape, or that has no place in the model, and a bias that is not zero
// where the model has none, are errors that name it.
absl::StatusOr<std::vector<ReadParameter>> ReadModel(const std::string& folder,
                                                     const ModelConfig& config);

}  // namespace weft::train

#endif  // WEFT_TRAINER_HUGGINGFACE_MODEL_READER_H_
