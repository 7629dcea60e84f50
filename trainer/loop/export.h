// The trained model for other programs: see trainer/huggingface.
#ifndef WEFT_TRAINER_LOOP_EXPORT_H_
#define WEFT_TRAINER_LOOP_EXPORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "trainer/model/gpt.h"

namespace weft::train {

// Into `folder`, which is made. The tensors have the type that the model computes in.
absl::Status ExportModel(const Gpt& model, const std::string& tokenizer_path, int32_t eod_id,
                         const std::string& folder);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_EXPORT_H_
