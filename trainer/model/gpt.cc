#include "trainer/model/gpt.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "trainer/kernels/kernels.h"
#include "trainer/model/operations.h"
#include "trainer/model/parameters.h"

namespace weft {

Gpt::Gpt(const ModelConfig& config, std::vector<at::Tensor> parameters)
    : config_(config), parameters_(std::move(parameters)) {
  for (const ParameterSpec& spec : GptParameters(config_)) names_.push_back(spec.name);
  WEFT_CHECK(names_.size() == parameters_.size(),
             names_.size() << " parameters, " << parameters_.size() << " tensors");
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    std::string name = absl::StrCat("block.", layer);
    blocks_.push_back({FindPair(name + ".norm1"), FindPair(name + ".attention.qkv"),
                       FindPair(name + ".attention.out"), FindPair(name + ".norm2"),
                       FindPair(name + ".ffn.in"), FindPair(name + ".ffn.out")});
  }
  norm_ = FindPair("norm");
  token_table_ = Find("embedding.token");
  position_table_ = Find("embedding.position");
  head_ = config_.tied ? token_table_ : Find("head.weight");
  if (config_.position == PositionKind::kRotary) {
    int64_t half = config_.hidden / config_.heads / 2;
    at::Tensor exponent = at::arange(half, at::kDouble) / static_cast<double>(-half);
    at::Tensor frequency = at::pow(config_.rotary_base, exponent);
    at::Tensor angle = at::outer(at::arange(config_.sequence, at::kDouble), frequency);
    cosine_ = at::cos(angle).to(at::kFloat);
    sine_ = at::sin(angle).to(at::kFloat);
  }
}

int Gpt::Find(const std::string& name) const {
  auto found = std::find(names_.begin(), names_.end(), name);
  return found == names_.end() ? -1 : static_cast<int>(found - names_.begin());
}

Gpt::Pair Gpt::FindPair(const std::string& name) const {
  return {Find(name + ".weight"), Find(name + ".bias")};
}

at::Tensor Gpt::Drop(const at::Tensor& x, const ForwardOptions& options) const {
  return options.dropout && config_.dropout > 0 ? at::dropout(x, config_.dropout, true) : x;
}

at::Tensor Gpt::RunBlock(const Block& block, const at::Tensor& x, int64_t length,
                         const ForwardOptions& options) const {
  operations::Context context{this, options.sink};
  auto linear = [&](const at::Tensor& in, const Pair& pair) {
    return operations::Linear(context, in, pair.weight, pair.bias);
  };
  auto attention = [&](const at::Tensor& in) {
    at::Tensor mixed = operations::Attention(context, linear(in, block.qkv), length);
    return Drop(linear(mixed, block.attention_out), options);
  };
  auto ffn = [&](const at::Tensor& in) {
    at::Tensor inner = linear(in, block.ffn_in);
    inner = config_.IsGated() ? operations::Swiglu(inner) : operations::Gelu(inner);
    return Drop(linear(inner, block.ffn_out), options);
  };
  auto [normed, residual] = operations::Norm(context, x, block.norm1.weight, block.norm1.bias);
  if (config_.block == BlockKind::kParallel) {
    return residual + attention(normed) + ffn(normed);
  }
  at::Tensor middle = residual + attention(normed);
  auto [normed2, residual2] =
      operations::Norm(context, middle, block.norm2.weight, block.norm2.bias);
  return residual2 + ffn(normed2);
}

Pass Gpt::Forward(const at::Tensor& tokens, const ForwardOptions& options) {
  WEFT_CHECK(tokens.dim() == 2 && tokens.size(1) <= config_.sequence, "tokens " << tokens.sizes());
  at::AutoGradMode grad_mode(options.sink != nullptr);
  operations::Context context{this, options.sink};
  int unit = 0;
  auto enter = [&] {
    if (options.before_unit) options.before_unit(unit);
    ++unit;
  };
  enter();
  at::Tensor x =
      Drop(operations::Embedding(context, tokens, token_table_, position_table_), options);
  for (const Block& block : blocks_) {
    enter();
    x = RunBlock(block, x, tokens.size(1), options);
  }
  enter();
  if (options.last_only) {
    x = x.view({tokens.size(0), tokens.size(1), config_.hidden}).select(1, -1).contiguous();
  }
  x = operations::Norm(context, x, norm_.weight, norm_.bias).first;
  return {operations::Linear(context, x, head_, -1)};
}

void Gpt::Backward(const Pass& pass) {
  torch::autograd::backward({pass.logits}, {pass.logits.detach()});
}

at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale) {
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  auto run = [&](auto type) {
    using T = decltype(type);
    kernels::Kernels().Of<T>().cross_entropy(
        logits.size(0), logits.size(1), targets.data_ptr<int64_t>(), static_cast<float>(scale),
        static_cast<T*>(logits.data_ptr()), losses.data_ptr<float>());
  };
  if (logits.scalar_type() == at::kFloat) {
    run(float{});
  } else {
    run(kernels::Bf16{});
  }
  return losses;
}

}  // namespace weft
