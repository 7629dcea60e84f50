// config.json of a Hugging Face model, in both directions.
#ifndef WEFT_TRAINER_HUGGINGFACE_MODEL_JSON_H_
#define WEFT_TRAINER_HUGGINGFACE_MODEL_JSON_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/config.h"

namespace weft::train {

// Describes ExportType(config) with tensors of `dtype`; token `eod_id` begins and ends documents.
std::string ModelJson(const ModelConfig& config, DType dtype, int32_t eod_id);

// Whether `text`, the content of the file `path`, describes the model of `config`. What the file
// leaves out has the value that the transformers library takes then. kInvalidArgument names the
// key, what the file has, and what `config` asks for. A model of rotary positions may be used with
// shorter samples than the file names.
absl::Status CheckModelJson(absl::string_view text, const std::string& path,
                            const ModelConfig& config);

}  // namespace weft::train

#endif  // WEFT_TRAINER_HUGGINGFACE_MODEL_JSON_H_
