#include "trainer/model/device_attention.h"

#include <ATen/detail/CUDAHooksInterface.h>

#include <atomic>
#include <cmath>
#include <limits>

#include "base/log.h"

namespace weft::train {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
// LibTorch's flash attention takes these widths of a head without a copy.
constexpr int64_t kFlashWidth = 256, kFlashMultiple = 8;

bool IsFlash(const AttentionInputs& inputs, const std::optional<at::Tensor>& mask) {
  const at::Tensor& query = inputs.query;
  return query.is_cuda() && !StoresScores(query.scalar_type(), query.size(3), mask.has_value());
}

// cuDNN's attention, which on Hopper takes half the time of the flash attention, for heads of up to
// 128; until it has refused once.
constexpr int64_t kCudnnWidth = 128, kFirstCudnn = 90100;
std::atomic<bool> cudnn_refuses = false;
bool IsCudnn(const AttentionInputs& inputs) {
  static const bool is_there = at::detail::getCUDAHooks().hasCuDNN() &&
                               at::detail::getCUDAHooks().versionRuntimeCuDNN() >= kFirstCudnn;
  return is_there && !cudnn_refuses && inputs.query.size(3) <= kCudnnWidth;
}
// Calls `cudnn`; where that refuses, `flash`, from then on. Both return the same type.
template <typename Cudnn, typename Flash>
auto ByCudnn(const AttentionInputs& inputs, const Cudnn& cudnn, const Flash& flash) {
  if (!IsCudnn(inputs)) return flash();
  try {
    return cudnn();
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error& error) {
    // What throws, too, is no refusal of cuDNN's: a capture that has broken, say.
    auto result = flash();
    if (!cudnn_refuses.exchange(true)) {
      WEFT_LOG_INFO("attention goes by LibTorch's flash attention, as cuDNN refused: ",
                    error.what_without_backtrace());
    }
    return result;
  }
}

int64_t HeadsOfEach(const AttentionInputs& inputs) {
  return inputs.query.size(1) / inputs.key.size(1);
}
// A key-value head for each head of queries.
at::Tensor ForEachHead(const at::Tensor& x, int64_t repeats) {
  return repeats == 1 ? x : x.repeat_interleave(repeats, 1);
}
// Their gradients, added up.
at::Tensor OfEachKvHead(const at::Tensor& x, int64_t repeats) {
  return repeats == 1 ? x : x.unflatten(1, {-1, repeats}).sum(2);
}

double ScaleOf(const at::Tensor& query) {
  return 1.0 / std::sqrt(static_cast<double>(query.size(3)));
}

// fp32 [B, heads, queries, keys].
at::Tensor Scores(const at::Tensor& query, const at::Tensor& key, bool is_causal,
                  const std::optional<at::Tensor>& mask) {
  at::Tensor scores = at::matmul(query, key.transpose(2, 3)).to(at::kFloat) * ScaleOf(query);
  if (mask) scores += *mask;
  if (is_causal) {
    const at::Tensor hidden =
        at::ones({scores.size(2), scores.size(3)}, scores.options().dtype(at::kBool)).triu_(1);
    scores.masked_fill_(hidden, -kInfinity);
  }
  return scores;
}
// exp(scores - logsumexp); 0 for a query that sees no key.
at::Tensor Weights(const at::Tensor& scores, const at::Tensor& logsumexp) {
  return at::exp(scores - logsumexp.masked_fill(logsumexp == -kInfinity, 0).unsqueeze(3));
}

}  // namespace

bool StoresScores(at::ScalarType type, int64_t width, bool has_mask) {
  return has_mask || type == at::kFloat || width > kFlashWidth || width % kFlashMultiple != 0;
}

AttentionOutputs DeviceAttention(const AttentionInputs& inputs, bool is_causal,
                                 const std::optional<at::Tensor>& mask) {
  const int64_t repeats = HeadsOfEach(inputs);
  const at::Tensor &query = inputs.query, key = ForEachHead(inputs.key, repeats),
                   value = ForEachHead(inputs.value, repeats);
  if (IsFlash(inputs, mask)) {
    return ByCudnn(
        inputs,
        [&] {
          auto results = at::_scaled_dot_product_cudnn_attention(
              query, key, value, /*attn_bias=*/std::nullopt, /*compute_log_sumexp=*/true,
              /*dropout_p=*/0.0, is_causal);
          const at::Tensor& logsumexp = std::get<1>(results);
          return AttentionOutputs{std::get<0>(results),
                                  logsumexp.dim() == 4 ? logsumexp.squeeze(3) : logsumexp};
        },
        [&] {
          auto results = at::_scaled_dot_product_flash_attention(query, key, value,
                                                                 /*dropout_p=*/0.0, is_causal);
          return AttentionOutputs{std::get<0>(results), std::get<1>(results)};
        });
  }
  const at::Tensor scores = Scores(query, key, is_causal, mask);
  const at::Tensor logsumexp = at::logsumexp(scores, 3);
  return {at::matmul(Weights(scores, logsumexp).to(value.scalar_type()), value), logsumexp};
}

AttentionInputs DeviceAttentionBackward(const at::Tensor& dout, const AttentionInputs& inputs,
                                        const AttentionOutputs& outputs, bool is_causal,
                                        const std::optional<at::Tensor>& mask) {
  const int64_t repeats = HeadsOfEach(inputs);
  const at::Tensor &query = inputs.query, key = ForEachHead(inputs.key, repeats),
                   value = ForEachHead(inputs.value, repeats);
  if (IsFlash(inputs, mask)) {
    // Without dropout the generator's state is not read.
    const at::Tensor none = at::empty({2}, query.options().dtype(at::kLong));
    const at::Tensor out = outputs.out.to(query.scalar_type());
    const auto [dquery, dkey, dvalue] = ByCudnn(
        inputs,
        [&] {
          return at::_scaled_dot_product_cudnn_attention_backward(
              dout, query, key, value, out, outputs.logsumexp.unsqueeze(3), none, none, {}, {}, {},
              query.size(2), key.size(2), /*dropout_p=*/0.0, is_causal);
        },
        [&] {
          return at::_scaled_dot_product_flash_attention_backward(
              dout, query, key, value, out, outputs.logsumexp, {}, {}, query.size(2), key.size(2),
              /*dropout_p=*/0.0, is_causal, none, none);
        });
    return {dquery, OfEachKvHead(dkey, repeats), OfEachKvHead(dvalue, repeats)};
  }
  const at::ScalarType type = query.scalar_type();
  const at::Tensor weights = Weights(Scores(query, key, is_causal, mask), outputs.logsumexp);
  const at::Tensor given = dout.to(at::kFloat);
  const at::Tensor dvalue = at::matmul(weights.transpose(2, 3), given);
  const at::Tensor dweights = at::matmul(given, value.to(at::kFloat).transpose(2, 3));
  const at::Tensor own = (given * outputs.out.to(at::kFloat)).sum(3, true);
  const at::Tensor dscores = (weights * (dweights - own) * ScaleOf(query)).to(type);
  return {at::matmul(dscores, key),
          OfEachKvHead(at::matmul(dscores.transpose(2, 3), query), repeats),
          OfEachKvHead(dvalue, repeats).to(type)};
}

}  // namespace weft::train
