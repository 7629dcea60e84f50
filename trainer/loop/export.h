// The trained model for other programs: model.safetensors, config.json in Hugging Face's form, and
// the SentencePiece model.
//
//   learned positions, LayerNorm, GELU, serial            GPT-2
//   rotary positions, LayerNorm, GELU, serial or parallel GPT-NeoX
//   rotary positions, RMSNorm, SwiGLU, serial             Llama
//   anything else                                         our own names, model_type "weft_gpt"
#ifndef WEFT_TRAINER_LOOP_EXPORT_H_
#define WEFT_TRAINER_LOOP_EXPORT_H_

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "trainer/model/gpt.h"

namespace weft::train {

// "gpt2", "gpt_neox", "llama" or "weft_gpt".
absl::string_view ExportType(const ModelConfig& config);

// Into `folder`, which is made. The tensors have the type that the model computes in.
absl::Status ExportModel(const Gpt& model, const std::string& tokenizer_path, int32_t eod_id,
                         const std::string& folder);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_EXPORT_H_
