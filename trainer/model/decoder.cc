#include "trainer/model/decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/status.h"
#include "trainer/kernels/decode.h"
#include "trainer/model/deliver.h"
#include "trainer/model/feed_forward.h"
#include "trainer/model/key_value_cache.h"
#include "trainer/model/parameter_numbers.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

using kernels::CachedAttention;
using kernels::DecodeKernels;
using kernels::TypedKernels;
using operations::Data;

ModelConfig WithoutCapacity(ModelConfig config) {
  config.capacity_factor = 0;
  return config;
}

std::vector<at::Tensor> ParametersOf(const Gpt& model) {
  WEFT_CHECK(model.axis() == nullptr && model.context() == nullptr, "the model is cut over ranks");
  std::vector<at::Tensor> parameters;
  const size_t count = GptParameters(model.config()).size();
  for (size_t i = 0; i < count; ++i) parameters.push_back(model.parameter(static_cast<int>(i)));
  return parameters;
}

struct Layer : BlockParameters {
  int64_t number = 0;
  KeyValueCache cache;
};

template <typename T>
class TypedDecoder final : public Decoder {
  // Own products: a row's result depends on nothing beside that row, to the bit.
  static constexpr bool kHasOwnProducts = !std::is_same_v<T, kernels::Fp16>;

 public:
  TypedDecoder(const Gpt& model, int64_t sequences)
      : model_(WithoutCapacity(model.config()), ParametersOf(model)),
        config_(model_.config()),
        width_(config_.hidden / config_.heads),
        decode_(kernels::Decoding().Of<T>()),
        kernels_(kernels::Kernels().Of<T>()),
        lengths_(static_cast<size_t>(sequences), 0) {
    if (kHasOwnProducts) {
      model_.set_gemm(KernelLibrary::kWeft);
      model_.set_attention(KernelLibrary::kWeft);
    }
    const std::vector<ParameterSpec> specs = GptParameters(config_);
    const ParameterNumbers numbers(specs);
    token_table_ = numbers.Find("embedding.token");
    position_table_ = numbers.Find("embedding.position");
    norm_ = numbers.FindPair("norm");
    head_ = config_.tied ? token_table_ : numbers.Find("head.weight");
    for (int64_t i = 0; i < config_.layers; ++i) {
      layers_.push_back({numbers.OfBlock(i, 0, config_.experts), i,
                         KeyValueCache(config_, i, sequences, model_.dtype())});
    }
    for (size_t i = 0; i < specs.size(); ++i) {
      const at::Tensor& parameter = model_.parameter(static_cast<int>(i));
      WEFT_CHECK(parameter.is_contiguous(), specs[i].name << " is not contiguous");
      const bool is_table =
          static_cast<int>(i) == token_table_ || static_cast<int>(i) == position_table_;
      const bool is_read = static_cast<int>(i) == head_ || !is_table;
      if (is_read && !specs[i].is_expert) weight_bytes_ += BytesOf(static_cast<int>(i));
    }
    const int64_t gates = config_.IsGated() ? 2 : 1;
    Resize(x_, sequences * config_.hidden);
    Resize(normed_, sequences * config_.hidden);
    Resize(query_, sequences * 3 * config_.hidden);
    Resize(key_value_, sequences * 2 * config_.KvHidden());
    Resize(mixed_, sequences * config_.hidden);
    Resize(branch_, sequences * config_.hidden);
    Resize(inner_, sequences * gates * config_.ffn);
    Resize(active_, sequences * config_.ffn);
    Resize(gathered_, sequences * config_.hidden);
    Resize(logits_, sequences * config_.vocabulary);
    Resize(scratch_, sequences);
  }

  using Decoder::Prefill;
  absl::Span<const float> Prefill(absl::Span<const Beginning> beginnings) override {
    WEFT_CHECK(!beginnings.empty() && beginnings.size() <= lengths_.size(),
               beginnings.size() << " beginnings for " << lengths_.size() << " sequences");
    for (const Beginning& one : beginnings) {
      const size_t length = one.tokens.size();
      WEFT_CHECK(length >= 1 && length <= static_cast<size_t>(config_.sequence),
                 length << " tokens for a context of " << config_.sequence);
      for (int64_t token : one.tokens) CheckToken(token);
    }
    const at::AutoGradMode no_gradients(false);
    // LibTorch's products, of fp16, may round a row in another way beside other rows.
    const size_t together = kHasOwnProducts ? beginnings.size() : 1;
    std::vector<at::Tensor> last;
    for (size_t i = 0; i < beginnings.size(); i += together) {
      last.push_back(LastRows(beginnings.subspan(i, together)));
    }
    const at::Tensor rows = last.size() == 1 ? last[0] : at::cat(last);
    const operations::Context context{&model_};
    return Head(rows.size(0), Data<T>(operations::Norm(context, rows, norm_).first));
  }

  absl::Span<const float> Step(absl::Span<const NextToken> next) override {
    const int64_t rows = static_cast<int64_t>(next.size());
    WEFT_CHECK(rows >= 1 && next.size() <= lengths_.size(),
               rows << " tokens for " << lengths_.size() << " sequences");
    const T* positions = position_table_ < 0 ? nullptr : Weights(position_table_);
    for (int64_t row = 0; row < rows; ++row) {
      const NextToken& one = next[static_cast<size_t>(row)];
      CheckToken(one.token);
      const int64_t position = length(one.sequence);
      WEFT_CHECK(
          position >= 1 && position < config_.sequence,
          "sequence " << one.sequence << " has " << position << " tokens of " << config_.sequence);
      kernels_.embedding_forward(
          1, config_.hidden, 1, &one.token, Weights(token_table_),
          positions == nullptr ? nullptr : positions + position * config_.hidden,
          x_.data() + row * config_.hidden);
    }
    bytes_read_ += weight_bytes_;
    for (Layer& layer : layers_) StepLayer(layer, next);
    for (const NextToken& one : next) ++lengths_[static_cast<size_t>(one.sequence)];
    Norm(rows, norm_, x_.data(), normed_.data());
    return Head(rows, normed_.data());
  }

  int64_t length(int64_t sequence) const override {
    WEFT_CHECK(sequence >= 0 && sequence < static_cast<int64_t>(lengths_.size()),
               "sequence " << sequence << " of " << lengths_.size());
    return lengths_[static_cast<size_t>(sequence)];
  }
  int64_t bytes_read() const override { return bytes_read_; }
  int64_t weight_bytes() const override { return weight_bytes_; }

 private:
  template <typename Values>
  static void Resize(Values& values, int64_t count) {
    values.resize(static_cast<size_t>(count));
  }
  void CheckToken(int64_t token) const {
    WEFT_CHECK(token >= 0 && token < config_.vocabulary,
               "token " << token << " of " << config_.vocabulary);
  }
  T* Weights(int index) const { return Data<T>(model_.parameter(index)); }
  T* WeightsOrNull(int index) const { return index < 0 ? nullptr : Weights(index); }
  int64_t BytesOf(int index) const {
    return index < 0 ? 0 : static_cast<int64_t>(model_.parameter(index).nbytes());
  }
  int64_t BytesOf(const ParameterPair& pair) const {
    return BytesOf(pair.weight) + BytesOf(pair.bias);
  }

  // The rows of a sequence among those of all that are read together.
  struct Rows {
    int64_t sequence = 0, begin = 0, count = 0;
  };

  // What the last block makes of the last token of each sequence.
  at::Tensor LastRows(absl::Span<const Beginning> beginnings) {
    const operations::Context context{&model_};
    std::vector<Rows> parts;
    std::vector<at::Tensor> embedded, last;
    int64_t begin = 0;
    for (const Beginning& one : beginnings) {
      const int64_t length = static_cast<int64_t>(one.tokens.size());
      at::Tensor tokens = at::empty({1, length}, at::kLong);
      std::memcpy(tokens.data_ptr(), one.tokens.data(), one.tokens.size() * sizeof(int64_t));
      embedded.push_back(operations::Embedding(context, tokens, token_table_, position_table_));
      parts.push_back({one.sequence, begin, length});
      begin += length;
    }
    at::Tensor x = embedded.size() == 1 ? embedded[0] : at::cat(embedded);
    for (Layer& layer : layers_) x = PrefillLayer(context, layer, parts, x);
    for (const Rows& rows : parts) {
      lengths_[static_cast<size_t>(rows.sequence)] = rows.count;
      last.push_back(x.narrow(0, rows.begin + rows.count - 1, 1));
    }
    return at::cat(last);
  }

  // Calls body(its rows of each of xs, its rows) for every sequence; the results are those rows of
  // what is returned.
  template <typename Body>
  static at::Tensor BySequence(absl::Span<const Rows> parts, const std::vector<at::Tensor>& xs,
                               Body body) {
    std::vector<at::Tensor> results;
    for (const Rows& rows : parts) {
      std::vector<at::Tensor> own;
      for (const at::Tensor& x : xs) own.push_back(x.narrow(0, rows.begin, rows.count));
      results.push_back(body(own, rows));
    }
    return results.size() == 1 ? results[0] : at::cat(results);
  }

  // One layer over all tokens of the sequences, as Gpt has it.
  at::Tensor PrefillLayer(const operations::Context& context, Layer& layer,
                          absl::Span<const Rows> parts, const at::Tensor& x) {
    auto attention = [&](const at::Tensor& in, const at::Tensor& before) {
      std::vector<at::Tensor> projected;
      for (const ParameterPair& pair : layer.projections) {
        projected.push_back(operations::Linear(context, in, pair));
      }
      const at::Tensor mixed =
          BySequence(parts, projected, [&](const std::vector<at::Tensor>& own, const Rows& rows) {
            // Turns queries and keys where they lie.
            at::Tensor result = operations::Attention(context, own, rows.count, layer.number);
            Keep(layer, rows.sequence, own, rows.count);
            return result;
          });
      return operations::LinearAdd(context, mixed, before, layer.attention_out);
    };
    auto ffn = [&](const at::Tensor& in, const at::Tensor& before) {
      if (layer.router < 0) {
        return operations::FeedForward(context, in, before, {layer.ffn_in, layer.ffn_out});
      }
      return before + BySequence(parts, {in}, [&](const auto& own, const Rows& rows) {
               const operations::Routing routing = operations::Route(
                   context, own[0], layer.router, rows.count, /*token_scale=*/0, nullptr);
               return operations::Experts(context, own[0], routing, layer.experts);
             });
    };
    auto [normed, residual] = operations::Norm(context, x, layer.norm1);
    const at::Tensor middle = attention(normed, residual);
    if (config_.block == BlockKind::kParallel) return ffn(normed, middle);
    auto [normed2, residual2] = operations::Norm(context, middle, layer.norm2);
    return ffn(normed2, residual2);
  }

  // Keeps keys and values of the last tokens that there is room for. projected: as operations.h has
  // them, of `length` tokens from the sequence's beginning.
  void Keep(Layer& layer, int64_t sequence, const std::vector<at::Tensor>& projected,
            int64_t length) const {
    const at::Tensor& rows = projected.back();
    const T* data = Data<T>(rows);
    const int64_t stride = rows.size(1), kv_hidden = config_.KvHidden();
    for (int64_t position = std::max<int64_t>(0, length - layer.cache.room()); position < length;
         ++position) {
      const T* value = data + (position + 1) * stride - kv_hidden;
      layer.cache.Keep(sequence, position, value - kv_hidden, value);
    }
  }

  void StepLayer(Layer& layer, absl::Span<const NextToken> next) {
    const int64_t rows = static_cast<int64_t>(next.size());
    Norm(rows, layer.norm1, x_.data(), normed_.data());
    StepAttention(layer, next);
    Multiply(rows, layer.attention_out, mixed_.data(), branch_.data());
    Add(rows);
    if (config_.block == BlockKind::kSerial) Norm(rows, layer.norm2, x_.data(), normed_.data());
    if (layer.router >= 0) {
      Mixture(layer, rows);
    } else {
      FeedForward(rows, layer.ffn_in, layer.ffn_out, normed_.data(), branch_.data());
    }
    Add(rows);
  }

  // normed_ -> mixed_.
  void StepAttention(Layer& layer, absl::Span<const NextToken> next) {
    const int64_t rows = static_cast<int64_t>(next.size()), hidden = config_.hidden;
    const int64_t kv_hidden = config_.KvHidden();
    const bool together = layer.projections.size() == 1;
    Multiply(rows, layer.projections[0], normed_.data(), query_.data());
    if (!together) Multiply(rows, layer.projections[1], normed_.data(), key_value_.data());
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t sequence = next[static_cast<size_t>(row)].sequence;
      const int64_t position = length(sequence);
      T* query = query_.data() + row * (together ? 3 * hidden : hidden);
      T* key = together ? query + hidden : key_value_.data() + row * 2 * kv_hidden;
      if (config_.position == PositionKind::kRotary) {
        Rotate(position, config_.heads, query);
        Rotate(position, config_.KvHeads(), key);
      }
      layer.cache.Keep<T>(sequence, position, key, key + kv_hidden);
      CachedAttention<T>& attention = scratch_[static_cast<size_t>(row)];
      attention = layer.cache.Attention<T>(sequence, position, query, mixed_.data() + row * hidden);
      bytes_read_ += attention.count * 2 * kv_hidden * static_cast<int64_t>(sizeof(T));
    }
    decode_.attend(rows, config_.heads, config_.KvHeads(), width_, scratch_.data());
  }
  void Rotate(int64_t position, int64_t heads, T* x) const {
    const int64_t half = width_ / 2;
    kernels_.rotate(1, 1, heads, width_, heads * width_,
                    Data<float>(model_.cosine()) + position * half,
                    Data<float>(model_.sine()) + position * half, /*inverse=*/false, x);
  }

  void Norm(int64_t rows, const ParameterPair& norm, const T* x, T* y) {
    mean_.resize(static_cast<size_t>(2 * rows));
    float* mean = config_.norm == NormKind::kLayerNorm ? mean_.data() : nullptr;
    kernels_.norm_forward(rows, config_.hidden, static_cast<float>(config_.norm_epsilon), x,
                          Weights(norm.weight), WeightsOrNull(norm.bias), y, mean,
                          mean_.data() + rows);
  }
  void Multiply(int64_t rows, const ParameterPair& layer, const T* x, T* y) const {
    const at::Tensor& weight = model_.parameter(layer.weight);
    decode_.multiply(rows, weight.size(0), weight.size(1), x, Data<T>(weight),
                     WeightsOrNull(layer.bias), y);
  }
  void FeedForward(int64_t rows, const ParameterPair& in, const ParameterPair& out, const T* x,
                   T* y) {
    Multiply(rows, in, x, inner_.data());
    if (config_.IsGated()) {
      kernels_.swiglu_forward(rows, config_.ffn, inner_.data(), active_.data());
    } else {
      kernels_.gelu_forward(rows * config_.ffn, inner_.data(), active_.data());
    }
    Multiply(rows, out, active_.data(), y);
  }
  // x_ += branch_.
  void Add(int64_t rows) {
    for (size_t i = 0; i < static_cast<size_t>(rows * config_.hidden); ++i) {
      kernels::Store(kernels::Load(x_[i]) + kernels::Load(branch_[i]), x_[i]);
    }
  }

  // Weights of all experts for each row: 0 for those that it does not take. As router.cc.
  std::vector<float> RouteRows(const Layer& layer, int64_t rows) const {
    const size_t experts = static_cast<size_t>(config_.experts);
    std::vector<float> weights(static_cast<size_t>(rows) * experts);
    decode_.multiply_fp32(rows, config_.experts, config_.hidden, normed_.data(),
                          Weights(layer.router), weights.data());
    std::vector<size_t> order(experts);
    for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
      const absl::Span<float> one = absl::MakeSpan(weights).subspan(row * experts, experts);
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(),
                       [&one](size_t a, size_t b) { return one[a] > one[b]; });
      const float largest = one[order[0]];
      float all = 0, taken = 0;
      for (float& logit : one) {
        logit = std::exp(logit - largest);
        all += logit;
      }
      for (size_t i = 0; i < experts; ++i) {
        float& weight = one[order[i]];
        if (i >= static_cast<size_t>(config_.top_k)) weight = 0;
        taken += weight;
      }
      for (float& weight : one) weight /= config_.top_k > 1 ? taken : all;
    }
    return weights;
  }
  // normed_ -> branch_. Each expert that a row takes is read once.
  void Mixture(const Layer& layer, int64_t rows) {
    const std::vector<float> weights = RouteRows(layer, rows);
    const size_t hidden = static_cast<size_t>(config_.hidden);
    std::vector<float> sums(static_cast<size_t>(rows) * hidden, 0.0F);
    std::vector<T> outputs(sums.size());
    for (size_t expert = 0; expert < layer.experts.size(); ++expert) {
      std::vector<std::pair<size_t, float>> takers;  // row and weight
      for (size_t row = 0; row < static_cast<size_t>(rows); ++row) {
        const float weight = weights[row * layer.experts.size() + expert];
        if (weight == 0) continue;
        std::copy_n(normed_.data() + row * hidden, hidden,
                    gathered_.data() + takers.size() * hidden);
        takers.emplace_back(row, weight);
      }
      if (takers.empty()) continue;
      const Expert& chosen = layer.experts[expert];
      bytes_read_ += BytesOf(chosen.in) + BytesOf(chosen.out);
      FeedForward(static_cast<int64_t>(takers.size()), chosen.in, chosen.out, gathered_.data(),
                  outputs.data());
      for (size_t i = 0; i < takers.size(); ++i) {
        const auto [row, weight] = takers[i];
        for (size_t j = 0; j < hidden; ++j) {
          sums[row * hidden + j] += kernels::Load(outputs[i * hidden + j]) * weight;
        }
      }
    }
    for (size_t i = 0; i < sums.size(); ++i) kernels::Store(sums[i], branch_[i]);
  }

  absl::Span<const float> Head(int64_t rows, const T* normed) {
    decode_.multiply_fp32(rows, config_.vocabulary, config_.hidden, normed, Weights(head_),
                          logits_.data());
    return {logits_.data(), static_cast<size_t>(rows * config_.vocabulary)};
  }

  Gpt model_;
  const ModelConfig& config_;
  const int64_t width_;  // of a head
  const DecodeKernels<T>& decode_;
  const TypedKernels<T>& kernels_;
  int token_table_ = -1, position_table_ = -1, head_ = -1;
  ParameterPair norm_;
  std::vector<Layer> layers_;
  std::vector<int64_t> lengths_;
  int64_t weight_bytes_ = 0;
  int64_t bytes_read_ = 0;
  // Activations of a step: a row for each of its tokens.
  std::vector<T> x_, normed_, query_, key_value_, mixed_, branch_, inner_, active_, gathered_;
  std::vector<float> mean_, logits_;
  std::vector<CachedAttention<T>> scratch_;
};

}  // namespace

Bytes Decoder::MemoryOf(const Gpt& model, int64_t tokens) {
  const ModelConfig& config = model.config();
  const auto width = static_cast<int64_t>(c10::elementSize(model.dtype()));
  // Activations of a step, as TypedDecoder has them.
  const int64_t elements =
      8 * config.hidden + 2 * config.KvHidden() + (config.IsGated() ? 3 : 2) * config.ffn;
  const int64_t bytes = elements * width + config.vocabulary * static_cast<int64_t>(sizeof(float));
  Bytes all(bytes);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    all += KeyValueCache::MemoryOf(config, layer, width, tokens);
  }
  return all;
}

std::unique_ptr<Decoder> Decoder::Create(const Gpt& model, int64_t sequences) {
  std::unique_ptr<Decoder> decoder;
  operations::ByType(model.dtype(), [&](auto type) {
    decoder = std::make_unique<TypedDecoder<decltype(type)>>(model, sequences);
  });
  return decoder;
}

}  // namespace weft::train
