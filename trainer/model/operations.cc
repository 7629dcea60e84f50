#include "trainer/model/operations.h"

#include <torch/torch.h>

#include "base/status.h"
#include "trainer/kernels/kernels.h"

namespace weft::operations {
namespace {

using kernels::Bf16;
using kernels::Kernels;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <typename T>
T* Data(const at::Tensor& tensor) {
  return static_cast<T*>(tensor.data_ptr());
}
template <typename T>
T* DataOrNull(const at::Tensor& tensor) {
  return tensor.defined() ? Data<T>(tensor) : nullptr;
}

// Calls `body` with a value of the C++ type of `dtype`.
template <typename Body>
void ByType(at::ScalarType dtype, Body body) {
  WEFT_CHECK(dtype == at::kFloat || dtype == at::kBFloat16, "dtype " << at::toString(dtype));
  if (dtype == at::kFloat) {
    body(float{});
  } else {
    body(Bf16{});
  }
}

// The context goes through LibTorch's graph as two pointers.
void Save(AutogradContext* ctx, const Context& context, int first, int second) {
  ctx->saved_data["model"] = reinterpret_cast<int64_t>(context.model);
  ctx->saved_data["sink"] = reinterpret_cast<int64_t>(context.sink);
  ctx->saved_data["first"] = static_cast<int64_t>(first);
  ctx->saved_data["second"] = static_cast<int64_t>(second);
}
struct Saved {
  explicit Saved(AutogradContext* ctx)
      : context{reinterpret_cast<const Gpt*>(ctx->saved_data["model"].toInt()),
                reinterpret_cast<GradientSink*>(ctx->saved_data["sink"].toInt())},
        first(static_cast<int>(ctx->saved_data["first"].toInt())),
        second(static_cast<int>(ctx->saved_data["second"].toInt())) {}
  Context context;
  int first;
  int second;
};

at::Tensor ParameterOrNone(const Context& context, int index) {
  return index < 0 ? at::Tensor() : context.model->parameter(index);
}

void DeliverTo(const GradientTarget& target, const at::Tensor& gradient) {
  if (target.add) {
    target.tensor.add_(gradient);
  } else {
    target.tensor.copy_(gradient);
  }
}

// dweight = dy^T * x, written by the matrix product itself where the types agree.
void DeliverWeight(const Context& context, int weight, const at::Tensor& dy, const at::Tensor& x) {
  GradientTarget target = context.sink->Begin(weight);
  if (target.tensor.scalar_type() != x.scalar_type()) {
    DeliverTo(target, at::mm(dy.t(), x));
  } else if (target.add) {
    target.tensor.addmm_(dy.t(), x);
  } else {
    at::mm_out(target.tensor, dy.t(), x);
  }
  context.sink->End(weight);
}

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Context& context,
                            int weight, int bias) {
    Save(ctx, context, weight, bias);
    ctx->save_for_backward({x});
    return at::linear(x, context.model->parameter(weight), ParameterOrNone(context, bias));
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    Saved saved(ctx);
    at::Tensor x = ctx->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    DeliverWeight(saved.context, saved.first, dy, x);
    if (saved.second >= 0) {
      GradientTarget target = saved.context.sink->Begin(saved.second);
      DeliverTo(target, dy.sum(0));
      saved.context.sink->End(saved.second);
    }
    return {at::mm(dy, saved.context.model->parameter(saved.first)), {}, {}, {}};
  }
};

struct NormFunction : torch::autograd::Function<NormFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const Context& context,
                               int weight, int bias) {
    Save(ctx, context, weight, bias);
    const ModelConfig& config = context.model->config();
    int64_t rows = x.size(0);
    auto fp32 = x.options().dtype(at::kFloat);
    at::Tensor y = at::empty_like(x);
    at::Tensor rstd = at::empty({rows}, fp32);
    at::Tensor mean = config.norm == NormKind::kLayerNorm ? at::empty({rows}, fp32) : at::Tensor();
    at::Tensor w = context.model->parameter(weight);
    at::Tensor b = ParameterOrNone(context, bias);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Kernels().Of<T>().norm_forward(rows, x.size(1), static_cast<float>(config.norm_epsilon),
                                     Data<T>(x), Data<T>(w), DataOrNull<T>(b), Data<T>(y),
                                     DataOrNull<float>(mean), Data<float>(rstd));
    });
    ctx->save_for_backward({x, rstd, mean});
    return {y, x};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    Saved saved(ctx);
    variable_list tensors = ctx->get_saved_variables();
    const at::Tensor& x = tensors[0];
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor residual = gradients[1].defined() ? gradients[1].contiguous() : gradients[1];
    at::Tensor dx = at::empty_like(x);
    auto fp32 = x.options().dtype(at::kFloat);
    at::Tensor dweight = at::empty({x.size(1)}, fp32);
    at::Tensor dbias = saved.second >= 0 ? at::empty({x.size(1)}, fp32) : at::Tensor();
    const at::Tensor& w = saved.context.model->parameter(saved.first);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Kernels().Of<T>().norm_backward(x.size(0), x.size(1), Data<T>(dy), Data<T>(x), Data<T>(w),
                                      DataOrNull<float>(tensors[2]), Data<float>(tensors[1]),
                                      DataOrNull<T>(residual), Data<T>(dx), Data<float>(dweight),
                                      DataOrNull<float>(dbias));
    });
    DeliverTo(saved.context.sink->Begin(saved.first), dweight);
    saved.context.sink->End(saved.first);
    if (saved.second >= 0) {
      DeliverTo(saved.context.sink->Begin(saved.second), dbias);
      saved.context.sink->End(saved.second);
    }
    return {dx, {}, {}, {}};
  }
};

struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    at::Tensor y = at::empty_like(x);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Kernels().Of<T>().gelu_forward(x.numel(), Data<T>(x), Data<T>(y));
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    at::Tensor x = ctx->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Kernels().Of<T>().gelu_backward(x.numel(), Data<T>(dy), Data<T>(x), Data<T>(dx));
    });
    return {dx};
  }
};

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    at::Tensor y = at::empty({x.size(0), x.size(1) / 2}, x.options());
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Kernels().Of<T>().swiglu_forward(x.size(0), x.size(1) / 2, Data<T>(x), Data<T>(y));
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    at::Tensor x = ctx->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Kernels().Of<T>().swiglu_backward(x.size(0), x.size(1) / 2, Data<T>(dy), Data<T>(x),
                                        Data<T>(dx));
    });
    return {dx};
  }
};

// Queries and keys of every row, in place.
void Rotate(const Context& context, const at::Tensor& qkv, int64_t length, bool inverse) {
  const ModelConfig& config = context.model->config();
  if (config.position != PositionKind::kRotary) return;
  ByType(qkv.scalar_type(), [&](auto type) {
    using T = decltype(type);
    Kernels().Of<T>().rotate(qkv.size(0), length, 2 * config.heads, config.hidden / config.heads,
                             qkv.size(1), Data<float>(context.model->cosine()),
                             Data<float>(context.model->sine()), inverse, Data<T>(qkv));
  });
}

// [B * length, 3 * C] as queries, keys, values: views [B, heads, length, width].
std::array<at::Tensor, 3> SplitHeads(const at::Tensor& qkv, int64_t length, int64_t heads) {
  int64_t batch = qkv.size(0) / length;
  int64_t width = qkv.size(1) / 3 / heads;
  at::Tensor parts = qkv.view({batch, length, 3, heads, width});
  return {parts.select(2, 0).transpose(1, 2), parts.select(2, 1).transpose(1, 2),
          parts.select(2, 2).transpose(1, 2)};
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& qkv, const Context& context,
                            int64_t length) {
    Save(ctx, context, static_cast<int>(length), 0);
    Rotate(context, qkv, length, /*inverse=*/false);
    auto [query, key, value] = SplitHeads(qkv, length, context.model->config().heads);
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, /*dropout_p=*/0.0, /*is_causal=*/true);
    ctx->save_for_backward({qkv, out, logsumexp});
    return out.transpose(1, 2).reshape({qkv.size(0), qkv.size(1) / 3});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    Saved saved(ctx);
    variable_list tensors = ctx->get_saved_variables();
    const at::Tensor& qkv = tensors[0];
    int64_t length = saved.first;
    int64_t heads = saved.context.model->config().heads;
    auto [query, key, value] = SplitHeads(qkv, length, heads);
    at::Tensor dout = gradients[0]
                          .contiguous()
                          .view({qkv.size(0) / length, length, heads, query.size(3)})
                          .transpose(1, 2);
    auto [dquery, dkey, dvalue] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        dout, query, key, value, tensors[1], tensors[2], /*dropout_p=*/0.0, /*is_causal=*/true);
    at::Tensor dqkv = at::empty_like(qkv);
    auto [query_part, key_part, value_part] = SplitHeads(dqkv, length, heads);
    query_part.copy_(dquery);
    key_part.copy_(dkey);
    value_part.copy_(dvalue);
    Rotate(saved.context, dqkv, length, /*inverse=*/true);
    return {dqkv, {}, {}};
  }
};

template <typename T, typename Body>
void DeliverTable(const Context& context, int parameter, Body body) {
  GradientTarget target = context.sink->Begin(parameter);
  if (target.tensor.scalar_type() == at::kFloat) {
    body(Data<float>(target.tensor), target.add);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    body(Data<Bf16>(target.tensor), target.add);
  }
  context.sink->End(parameter);
}

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  // `anchor` has no use but that it requires a gradient, so that this node is in the graph.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& anchor,
                            const at::Tensor& tokens, const Context& context, int table,
                            int positions) {
    (void)anchor;
    Save(ctx, context, table, positions);
    ctx->save_for_backward({tokens});
    const at::Tensor& words = context.model->parameter(table);
    at::Tensor places = ParameterOrNone(context, positions);
    at::Tensor y = at::empty({tokens.numel(), words.size(1)}, words.options());
    ByType(words.scalar_type(), [&](auto type) {
      using T = decltype(type);
      Kernels().Of<T>().embedding_forward(tokens.numel(), words.size(1), tokens.size(1),
                                          tokens.data_ptr<int64_t>(), Data<T>(words),
                                          DataOrNull<T>(places), Data<T>(y));
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    Saved saved(ctx);
    at::Tensor tokens = ctx->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    int64_t vocab = saved.context.model->config().vocabulary;
    ByType(dy.scalar_type(), [&](auto type) {
      using T = decltype(type);
      if (saved.second >= 0) {
        DeliverTable<T>(saved.context, saved.second, [&](auto* out, bool add) {
          // A shorter sample than the table leaves the rest without a gradient.
          int64_t all = saved.context.model->parameter(saved.second).size(0);
          if (!add) std::fill_n(out, all * dy.size(1), std::remove_pointer_t<decltype(out)>{});
          kernels::PositionBackward(dy.size(0), dy.size(1), tokens.size(1), Data<T>(dy), add, out);
        });
      }
      DeliverTable<T>(saved.context, saved.first, [&](auto* out, bool add) {
        kernels::EmbeddingBackward(dy.size(0), dy.size(1), vocab, tokens.data_ptr<int64_t>(),
                                   Data<T>(dy), add, out);
      });
    });
    return {{}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor Linear(const Context& context, const at::Tensor& x, int weight, int bias) {
  return LinearFunction::apply(x, context, weight, bias);
}

std::pair<at::Tensor, at::Tensor> Norm(const Context& context, const at::Tensor& x, int weight,
                                       int bias) {
  variable_list outputs = NormFunction::apply(x, context, weight, bias);
  return {outputs[0], outputs[1]};
}

at::Tensor Gelu(const at::Tensor& x) { return GeluFunction::apply(x); }
at::Tensor Swiglu(const at::Tensor& x) { return SwigluFunction::apply(x); }

at::Tensor Attention(const Context& context, const at::Tensor& qkv, int64_t length) {
  return AttentionFunction::apply(qkv, context, length);
}

at::Tensor Embedding(const Context& context, const at::Tensor& tokens, int table, int positions) {
  at::Tensor anchor = at::empty({0}, at::kFloat);
  anchor.set_requires_grad(context.sink != nullptr);
  return EmbeddingFunction::apply(anchor, tokens, context, table, positions);
}

}  // namespace weft::operations
