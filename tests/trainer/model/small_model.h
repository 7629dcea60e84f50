// A model that tests can run whole, with random parameters.
#ifndef WEFT_TESTS_TRAINER_MODEL_SMALL_MODEL_H_
#define WEFT_TESTS_TRAINER_MODEL_SMALL_MODEL_H_

#include <torch/torch.h>

#include <vector>

#include "trainer/model/gpt.h"
#include "trainer/model/parameters.h"

namespace weft::train {

inline ModelConfig SmallConfig() {
  ModelConfig config;
  config.layers = 2;
  config.hidden = 32;
  config.heads = 4;
  config.ffn = 48;
  config.sequence = 12;
  config.vocabulary = 50;
  return config;
}

// Random values everywhere, so that biases and norm weights matter, too.
inline std::vector<at::Tensor> RandomParameters(const std::vector<ParameterSpec>& specs,
                                                at::ScalarType type) {
  torch::manual_seed(3);
  std::vector<at::Tensor> values;
  for (const ParameterSpec& spec : specs) {
    values.push_back((at::randn(spec.shape) * 0.2 + spec.mean).to(type));
  }
  return values;
}

inline double RelativeError(const at::Tensor& actual, const at::Tensor& expected) {
  const at::Tensor a = actual.to(at::kDouble), e = expected.to(at::kDouble);
  return ((a - e).norm() / (e.norm() + 1e-12)).item<double>();
}

}  // namespace weft::train

#endif  // WEFT_TESTS_TRAINER_MODEL_SMALL_MODEL_H_
