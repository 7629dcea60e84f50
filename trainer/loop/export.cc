#include "trainer/loop/export.h"

#include <ATen/ATen.h>

#include <cstddef>
#include <map>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/huggingface/model_writer.h"
#include "trainer/model/parameters.h"

namespace weft::train {

absl::Status ExportModel(const Gpt& model, const std::string& tokenizer_path, int32_t eod_id,
                         const std::string& folder) {
  std::map<std::string, int> numbers;
  for (const ParameterSpec& spec : GptParameters(model.config())) {
    numbers.emplace(spec.name, static_cast<int>(numbers.size()));
  }
  at::Tensor tensor;  // the bytes that were given last
  auto bytes = [&](const std::string& name) -> absl::StatusOr<absl::Span<const std::byte>> {
    tensor = model.parameter(numbers.at(name)).contiguous();
    return absl::MakeConstSpan(static_cast<const std::byte*>(tensor.data_ptr()), tensor.nbytes());
  };
  const DType dtype = model.dtype() == at::kFloat  ? DType::kF32
                      : model.dtype() == at::kHalf ? DType::kF16
                                                   : DType::kBF16;
  return WriteModel({model.config(), dtype, eod_id, tokenizer_path}, bytes, folder);
}

}  // namespace weft::train
