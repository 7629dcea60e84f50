// A GPT with the choices of [model]: pre-norm; serial or parallel blocks; learned or rotary
// positions; GELU or SwiGLU; LayerNorm or RMSNorm; tied output or not.
//
//   Gpt model(config, parameters);                 // tensors in the order of GptParameters()
//   Pass pass = model.Forward(tokens, options);    // logits, with the graph to go back
//   at::Tensor losses = CrossEntropy(pass.logits, targets, scale);
//   model.Backward(pass, sink);
//
// Parameters are views that others own and change between passes; they take no part in LibTorch's
// autograd, which carries activations only: each operation hands its parameters' gradients to the
// sink by itself. One type, fp32 or bf16, for parameters and activations; sums, norms and losses
// are in fp32. Shapes: B samples, T tokens each, C hidden. Not thread-safe. LibTorch's exceptions
// pass through.
#ifndef WEFT_TRAINER_MODEL_GPT_H_
#define WEFT_TRAINER_MODEL_GPT_H_

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "trainer/config.h"
#include "trainer/model/gradient_sink.h"

namespace weft {

struct ForwardOptions {
  // Called before the parameters of a unit (see ParameterSpec) are first read.
  std::function<void(int unit)> before_unit;
  GradientSink* sink = nullptr;  // null: no backward pass will follow
  bool dropout = false;
  bool last_only = false;  // logits of each sample's last token only: [B, vocab]
};

struct Pass {
  at::Tensor logits;  // [B * T, vocab]
};

class Gpt {
 public:
  Gpt(const ModelConfig& config, std::vector<at::Tensor> parameters);

  // tokens: int64 [B, T], T up to model.sequence.
  Pass Forward(const at::Tensor& tokens, const ForwardOptions& options);
  // After CrossEntropy has turned the logits into their gradient.
  static void Backward(const Pass& pass);

  const ModelConfig& config() const { return config_; }
  const at::Tensor& parameter(int index) const { return parameters_[static_cast<size_t>(index)]; }
  at::ScalarType dtype() const { return parameters_[0].scalar_type(); }
  // cos and sin of position * frequency, fp32 [sequence, width of a head / 2].
  const at::Tensor& cosine() const { return cosine_; }
  const at::Tensor& sine() const { return sine_; }

 private:
  // Numbers of a linear layer's or norm's parameters; bias -1: none.
  struct Pair {
    int weight = -1;
    int bias = -1;
  };
  struct Block {
    Pair norm1, qkv, attention_out, norm2, ffn_in, ffn_out;
  };
  int Find(const std::string& name) const;  // -1: none
  Pair FindPair(const std::string& name) const;
  at::Tensor RunBlock(const Block& block, const at::Tensor& x, int64_t length,
                      const ForwardOptions& options) const;
  at::Tensor Drop(const at::Tensor& x, const ForwardOptions& options) const;

  const ModelConfig config_;
  const std::vector<at::Tensor> parameters_;
  std::vector<std::string> names_;
  std::vector<Block> blocks_;
  Pair norm_;
  int token_table_, position_table_, head_;
  at::Tensor cosine_, sine_;
};

// Losses of the tokens, fp32 [rows]. With `scale` != 0 the logits are overwritten by the gradient
// of scale * sum(losses). targets: int64 [rows].
at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale);

}  // namespace weft

#endif  // WEFT_TRAINER_MODEL_GPT_H_
