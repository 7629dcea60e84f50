// A GPT with the choices of [model]: pre-norm; serial or parallel blocks; learned or rotary
// positions; full, grouped-query or sliding-window attention; GELU or SwiGLU, one or a
// mixture of experts; LayerNorm or RMSNorm; tied output or not.
//
//   Gpt model(config, parameters);                 // tensors in the order of GptParameters()
//   Pass pass = model.Forward(tokens, options);    // logits, with the graph to go back
//   at::Tensor losses = CrossEntropy(pass.logits, targets, scale);
//   model.Backward(pass);
//
// or, where the logits are too many to be kept, with ForwardOptions::loss:
//
//   at::Tensor losses = model.Run(tokens, length, options);
//   torch::autograd::backward({losses}, {at::empty_like(losses)});
//
// A Gpt may be a chunk of the model (parameters.h): it then begins with the activations of the
// chunk before, or ends with those for the chunk behind. Over a tensor axis activations are this
// rank's rows of them (tensor_axis.h), and logits are [rows, this rank's part of the vocabulary].
//
// Parameters are views that others own and change between passes; they take no part in LibTorch's
// autograd, which carries activations only: each operation hands its parameters' gradients to the
// sink by itself. One type, fp32 or bf16, for parameters and activations; sums, norms and losses
// are in fp32. Shapes: B samples, T tokens each, C hidden. Not thread-safe. LibTorch's exceptions
// pass through.
#ifndef WEFT_TRAINER_MODEL_GPT_H_
#define WEFT_TRAINER_MODEL_GPT_H_

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trainer/config.h"
#include "trainer/model/attention_libraries.h"
#include "trainer/model/context_axis.h"
#include "trainer/model/expert_axis.h"
#include "trainer/model/gradient_sink.h"
#include "trainer/model/packed_weights.h"
#include "trainer/model/parameter_numbers.h"
#include "trainer/model/parameters.h"
#include "trainer/model/product.h"
#include "trainer/model/recompute.h"
#include "trainer/model/tensor_axis.h"

namespace weft::train {

// The axes that live inside of a model; null: one rank.
struct ModelAxes {
  const TensorAxis* tensor = nullptr;
  const ContextAxis* context = nullptr;
  const ExpertAxis* experts = nullptr;
};

// Sums over rows and layers of what the routers of a mixture of experts did (router.cc).
struct RouterTotals {
  double balance = 0;   // balance losses
  double z = 0;         // z losses
  int64_t choices = 0;  // of experts by tokens
  int64_t dropped = 0;  // of these, for want of capacity
};

// What dropout draws from: a mask depends on the key, the place in the model, the row's number and
// the column, so that every layout drops the same elements.
struct DropoutKey {
  uint64_t key = 0;       // of the step
  int64_t first_row = 0;  // number of the pass's first token in the global batch
};

// Asks a pass for losses in place of logits.
struct LossRequest {
  at::Tensor targets;  // int64 [rows]
  double scale = 0;    // the backward pass is that of scale * sum(losses); 0: none will follow
  int64_t rows = 0;    // whose logits exist at one time; 0: see LossRows
};

struct ForwardOptions {
  // Called before the parameters of a unit (see ParameterSpec) are first read, and when the forward
  // pass has read them; the same of the backward pass, of units but the embedding.
  std::function<void(int unit)> before_unit, after_unit, before_backward, after_backward;
  // What is computed again, of each layer of the model; null: nothing. Outlives the backward pass.
  const std::vector<RecomputeKind>* recompute = nullptr;
  GradientSink* sink = nullptr;           // null: no backward pass will follow
  DeferredGradients* deferred = nullptr;  // takes the gradients of matrices; null: none is put off
  std::optional<DropoutKey> dropout;      // none: nothing is dropped
  // With experts: the weight of a token in the loss, for the routers' own losses; and what they
  // did, may be null.
  double token_scale = 0;
  RouterTotals* router = nullptr;
  bool last_only = false;           // logits of each sample's last token only: [B, vocab]
  std::optional<LossRequest> loss;  // of the last chunk: losses, fp32 [rows], in place of logits
};

struct Pass {
  at::Tensor logits;  // [B * T, vocab]
};

class Gpt {
 public:
  Gpt(const ModelConfig& config, std::vector<at::Tensor> parameters);
  // Chunk number `chunk` of a part. `specs` and `parameters` are those of the whole part;
  // the axes outlive this object.
  Gpt(const ModelConfig& config, const ModelPart& part, int chunk,
      const std::vector<ParameterSpec>& specs, std::vector<at::Tensor> parameters,
      const ModelAxes& axes);

  // tokens: int64 [B, T], T up to model.sequence. The whole model, or its only chunk.
  Pass Forward(const at::Tensor& tokens, const ForwardOptions& options);
  // After CrossEntropy has turned the logits into their gradient.
  static void Backward(const Pass& pass);

  // One chunk. input: tokens [B, T] for the first, else activations of B samples of `length`
  // tokens. Over a context axis these are the tokens that this rank holds. Returns activations, or
  // logits or losses for the last.
  at::Tensor Run(const at::Tensor& input, int64_t length, const ForwardOptions& options);

  const ModelConfig& config() const { return config_; }
  const at::Tensor& parameter(int index) const { return parameters_[static_cast<size_t>(index)]; }
  at::ScalarType dtype() const { return parameters_[0].scalar_type(); }
  const TensorAxis* axis() const { return axis_; }
  const ContextAxis* context() const { return context_; }
  const ExpertAxis* experts() const { return experts_; }
  // Numbers of the rows that this rank holds between the matrix products, of which it has `held`.
  at::Tensor RowsHeld(int64_t held) const;
  // The place in its sample of each row of this rank: int64, as `rows`, of samples of `length`
  // rows.
  at::Tensor PlacesOf(const at::Tensor& rows, int64_t length) const;
  // Places of the rows of one sample, int64; undefined without a context axis: 0, 1, ...
  const at::Tensor& places() const { return places_; }
  int64_t heads() const { return config_.heads / part_.tensor_size; }  // that this rank has
  // Key-value heads that this rank uses, and the first of them among those that it has: all are its
  // own, or one of all that there are where there are fewer than tensor ranks.
  int64_t kv_heads() const { return std::max<int64_t>(1, config_.KvHeads() / part_.tensor_size); }
  int64_t first_kv_head() const {
    const int64_t all = config_.KvHeads();
    return all % part_.tensor_size == 0 ? 0 : part_.tensor_rank * all / part_.tensor_size;
  }
  const GemmLibraries& gemm() const { return gemm_; }
  KernelLibrary attention_library(int64_t window) const { return attention_.Of(window); }
  // What multiplies, and what computes attention, from now on; LibTorch at the beginning.
  void set_gemm(GemmLibraries libraries) { gemm_ = std::move(libraries); }
  void set_attention(AttentionLibraries libraries) { attention_ = std::move(libraries); }
  // From now on our own products read `part` of the weights from packed copies, made anew when
  // `changes` returns another number than before.
  void KeepPacked(PackedPart part, ChangeCount changes) {
    packed_ = std::make_unique<PackedWeights>(std::move(changes));
    packed_part_ = part;
  }
  // Where products of a pass have a weight packed; null: nowhere.
  PackedWeight* packed(int parameter, GemmPass pass) const {
    const bool keeps = packed_part_ == PackedPart::kAll ||
                       (packed_part_ == PackedPart::kHead && parameter == head_);
    return keeps ? &packed_->Of(parameter, pass) : nullptr;
  }
  // The tokens whose rows of the embedding this rank has.
  int64_t first_token() const { return first_token_; }
  // cos and sin of position * frequency, fp32 [rows of a sample here, width of a head / 2].
  const at::Tensor& cosine() const { return cosine_; }
  const at::Tensor& sine() const { return sine_; }

 private:
  struct Block : BlockParameters {
    int64_t layer = 0;
    bool has_attention = true, has_ffn = true;  // of a serial block one may be in another chunk
  };
  at::Tensor Embed(const at::Tensor& tokens, const ForwardOptions& options) const;
  at::Tensor RunBlock(const Block& block, const at::Tensor& x, int64_t length,
                      const ForwardOptions& options) const;
  at::Tensor MixExperts(const Block& block, const at::Tensor& normed, int64_t length,
                        const ForwardOptions& options) const;
  at::Tensor Activate(const at::Tensor& inner) const;
  at::Tensor RunOrRecompute(const Block& block, const at::Tensor& x, int64_t length,
                            const ForwardOptions& options) const;
  RecomputeKind RecomputeOf(const Block& block, const ForwardOptions& options) const;
  // Attention's core and the nonlinearity; where they are to be computed again, what drops their
  // results goes to `regions`.
  at::Tensor Mix(const Block& block, const std::vector<at::Tensor>& projections, int64_t length,
                 const ForwardOptions& options, std::vector<operations::Region>& regions) const;
  at::Tensor Activated(const Block& block, const at::Tensor& inner, const ForwardOptions& options,
                       std::vector<operations::Region>& regions) const;
  at::Tensor RunSplitBlock(const Block& block, const at::Tensor& x, int64_t length,
                           const ForwardOptions& options) const;
  at::Tensor RunSplitSerial(const Block& block, const at::Tensor& x, int64_t length,
                            const ForwardOptions& options) const;
  at::Tensor AttendSplit(const Block& block, const at::Tensor& normed, const at::Tensor& residual,
                         int64_t length, const ForwardOptions& options) const;
  at::Tensor Drop(const at::Tensor& x, int64_t place, const ForwardOptions& options) const;
  at::Tensor Head(const at::Tensor& x, int64_t length, const ForwardOptions& options) const;

  const ModelConfig config_;
  const ModelPart part_;
  const ModelChunk chunk_;
  const std::vector<at::Tensor> parameters_;
  const at::Device device_;
  const TensorAxis* const axis_;
  const ContextAxis* const context_;
  Group alone_;
  std::optional<ExpertAxis> own_experts_;  // where one rank has all
  const ExpertAxis* experts_;
  std::vector<Block> blocks_;
  int first_unit_ = 0;
  GemmLibraries gemm_;
  AttentionLibraries attention_;
  std::unique_ptr<PackedWeights> packed_;
  PackedPart packed_part_ = PackedPart::kNone;
  int64_t first_token_ = 0;
  ParameterPair norm_;
  int token_table_ = -1, position_table_ = -1, head_ = -1;
  at::Tensor cosine_, sine_, places_;
};

// Losses of the tokens, fp32 [rows]. With `scale` != 0 the logits are overwritten by the gradient
// of scale * sum(losses). targets: int64 [rows].
at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale);
// The same where each rank of `axis` has the logits of some tokens, from `first_token` on.
at::Tensor SplitCrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                             int64_t first_token, const TensorAxis& axis, double scale);
// Rows whose logits are computed at one time: `wanted`, or for 0 as many as the last-level cache
// has room for, shared out evenly over the chunks of `rows`. vocabulary: this rank's part.
int64_t LossRows(int64_t rows, int64_t vocabulary, int64_t element_bytes, int64_t wanted,
                 bool on_gpu);

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_GPT_H_
