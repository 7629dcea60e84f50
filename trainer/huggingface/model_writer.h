// A model for other programs: model.safetensors under Hugging Face's names, its config.json, and
// the SentencePiece model.
#ifndef WEFT_TRAINER_HUGGINGFACE_MODEL_WRITER_H_
#define WEFT_TRAINER_HUGGINGFACE_MODEL_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/config.h"

namespace weft::train {

struct WrittenModel {
  ModelConfig config;         // with its vocabulary
  DType dtype = DType::kF32;  // of all tensors
  int32_t eod_id = 0;
  std::string tokenizer;  // path of the SentencePiece model
};

// The whole parameter of that name, row-major, in WrittenModel::dtype. It is used until the
// next call.
using ParameterBytes =
    std::function<absl::StatusOr<absl::Span<const std::byte>>(const std::string& name)>;

// The tensors alone, to a safetensors file; neither
// eod_id nor tokenizer is used.
absl::Status WriteTensors(const WrittenModel& model, const ParameterBytes& parameter,
                          const std::string& path);

// Into `folder`, which is made. Each file is durable when this returns.
absl::Status WriteModel(const WrittenModel& model, const ParameterBytes& parameter,
                        const std::string& folder);

}  // namespace weft::train

#endif  // WEFT_TRAINER_HUGGINGFACE_MODEL_WRITER_H_
