#include "trainer/loop/warm_up.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <exception>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "trainer/model/gpt.h"
#include "trainer/model/gradient_sink.h"
#include "trainer/model/parameters.h"
#include "trainer/model/product.h"

namespace weft::train {
namespace {

// Rows of the embedding and of the output projection: what they set up does not depend on how many
// there are, and a spare process is to take little of its host's memory.
constexpr int64_t kWarmVocabulary = 1024;

class Gradients final : public GradientSink {
 public:
  explicit Gradients(const std::vector<at::Tensor>& parameters) {
    for (const at::Tensor& parameter : parameters) {
      gradients_.push_back(at::zeros_like(parameter));
    }
  }
  GradientTarget Begin(int parameter) override {
    return {gradients_[static_cast<size_t>(parameter)], true};
  }
  void End(int) override {}

 private:
  std::vector<at::Tensor> gradients_;
};

void RunLayer(const ModelConfig& model, at::ScalarType type, KernelLibrary library) {
  std::vector<at::Tensor> parameters;
  for (const ParameterSpec& spec : GptParameters(model)) {
    parameters.push_back(at::zeros(spec.shape, type));
  }
  Gradients gradients(parameters);
  Gpt layer(model, std::move(parameters));
  layer.set_gemm(library);
  layer.set_attention(library);
  ForwardOptions options;
  options.sink = &gradients;
  const at::Tensor tokens = at::zeros({1, model.sequence}, at::kLong);
  const Pass pass = layer.Forward(tokens, options);
  CrossEntropy(pass.logits, tokens.flatten(), 1.0 / static_cast<double>(model.sequence));
  Gpt::Backward(pass);
}

}  // namespace

absl::Status WarmUp(const TrainConfig& config, int threads, RunData& data) {
  at::set_num_threads(threads);
  const absl::Status opened = data.Open(config, /*wants_tokenizer=*/true);
  if (opened.ok()) {
    std::vector<int32_t> sample(static_cast<size_t>(config.model.sequence) + 1);
    WEFT_RETURN_IF_ERROR(data.training->Read(0, absl::MakeSpan(sample)));
  }
  ModelConfig model = config.model;
  model.layers = 1;
  model.vocabulary =
      opened.ok() ? std::min<int64_t>(data.vocab_size(), kWarmVocabulary) : kWarmVocabulary;
  try {
    for (const KernelLibrary library : {KernelLibrary::kAten, KernelLibrary::kWeft}) {
      if (library == KernelLibrary::kWeft && config.precision == Precision::kFp16) continue;
      RunLayer(model, TypeOf(config.precision), library);
    }
  } catch (const std::exception& error) {  // LibTorch's
    return absl::InternalError(absl::StrCat("a layer's first passes: ", error.what()));
  }
  return opened;
}

}  // namespace weft::train
