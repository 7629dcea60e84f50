#include "trainer/model/operations.h"

#include <algorithm>

#include "base/random.h"
#include "trainer/model/deliver.h"
#include "trainer/profile/work_time.h"

namespace weft::train::operations {
namespace {

struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Context& context,
                            const ParameterPair& layer) {
    SaveContext(ctx, context);
    SavePair(ctx, layer);
    ctx->save_for_backward({x});
    const int64_t width = context.model->parameter(layer.weight).size(0);
    at::Tensor y = at::empty({x.size(0), width}, x.options());
    MultiplyInto(context, x, layer, y);
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Context context = SavedContext(ctx);
    const ParameterPair layer = SavedPair(ctx);
    const at::Tensor dy = gradients[0].contiguous();
    DeliverLinear(context, layer, dy, ctx->get_saved_variables()[0]);
    const at::Tensor& weight = context.model->parameter(layer.weight);
    at::Tensor dx = at::empty({dy.size(0), weight.size(1)}, dy.options());
    InputGradientInto(context, dy, layer.weight, dx);
    return {dx, {}, {}};
  }
};

struct NormFunction : torch::autograd::Function<NormFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const Context& context,
                               const ParameterPair& norm) {
    const WorkScope scope(Work::kElementwise);
    SaveContext(ctx, context);
    SavePair(ctx, norm);
    const ModelConfig& config = context.model->config();
    int64_t rows = x.size(0);
    auto fp32 = x.options().dtype(at::kFloat);
    at::Tensor y = at::empty_like(x);
    at::Tensor rstd = at::empty({rows}, fp32);
    at::Tensor mean = config.norm == NormKind::kLayerNorm ? at::empty({rows}, fp32) : at::Tensor();
    at::Tensor w = context.model->parameter(norm.weight);
    at::Tensor b = ParameterOrNone(context, norm.bias);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(x).Of<T>().norm_forward(rows, x.size(1), static_cast<float>(config.norm_epsilon),
                                        Data<T>(x), Data<T>(w), DataOrNull<T>(b), Data<T>(y),
                                        DataOrNull<float>(mean), Data<float>(rstd));
    });
    ctx->save_for_backward({x, rstd, mean});
    return {y, x};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const WorkScope scope(Work::kElementwise);
    const Context context = SavedContext(ctx);
    const ParameterPair norm = SavedPair(ctx);
    variable_list tensors = ctx->get_saved_variables();
    const at::Tensor& x = tensors[0];
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor residual = gradients[1].defined() ? gradients[1].contiguous() : gradients[1];
    at::Tensor dx = at::empty_like(x);
    auto fp32 = x.options().dtype(at::kFloat);
    at::Tensor dweight = at::empty({x.size(1)}, fp32);
    at::Tensor dbias = norm.bias >= 0 ? at::empty({x.size(1)}, fp32) : at::Tensor();
    const at::Tensor& w = context.model->parameter(norm.weight);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(x).Of<T>().norm_backward(x.size(0), x.size(1), Data<T>(dy), Data<T>(x), Data<T>(w),
                                         DataOrNull<float>(tensors[2]), Data<float>(tensors[1]),
                                         DataOrNull<T>(residual), Data<T>(dx), Data<float>(dweight),
                                         DataOrNull<float>(dbias));
    });
    Deliver(context, norm.weight, dweight);
    if (norm.bias >= 0) Deliver(context, norm.bias, dbias);
    return {dx, {}, {}};
  }
};

struct GeluFunction : torch::autograd::Function<GeluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const WorkScope scope(Work::kElementwise);
    ctx->save_for_backward({x});
    at::Tensor y = at::empty_like(x);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(x).Of<T>().gelu_forward(x.numel(), Data<T>(x), Data<T>(y));
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const WorkScope scope(Work::kElementwise);
    at::Tensor x = ctx->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(x).Of<T>().gelu_backward(x.numel(), Data<T>(dy), Data<T>(x), Data<T>(dx));
    });
    return {dx};
  }
};

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x) {
    const WorkScope scope(Work::kElementwise);
    ctx->save_for_backward({x});
    at::Tensor y = at::empty({x.size(0), x.size(1) / 2}, x.options());
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(x).Of<T>().swiglu_forward(x.size(0), x.size(1) / 2, Data<T>(x), Data<T>(y));
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const WorkScope scope(Work::kElementwise);
    at::Tensor x = ctx->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(x).Of<T>().swiglu_backward(x.size(0), x.size(1) / 2, Data<T>(dy), Data<T>(x),
                                           Data<T>(dx));
    });
    return {dx};
  }
};

struct EmbeddingFunction : torch::autograd::Function<EmbeddingFunction> {
  // `anchor` has no use but that it requires a gradient, so that this node is in the graph.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& anchor,
                            const at::Tensor& tokens, const Context& context, int table,
                            int positions) {
    const WorkScope scope(Work::kEmbedding);
    (void)anchor;
    SaveContext(ctx, context);
    SavePair(ctx, {table, positions});
    ctx->save_for_backward({tokens});
    const at::Tensor& words = context.model->parameter(table);
    at::Tensor places = ParameterOrNone(context, positions);
    if (places.defined() && context.model->places().defined()) {
      places = places.index_select(0, context.model->places());
    }
    at::Tensor y = at::empty({tokens.numel(), words.size(1)}, words.options());
    ByType(words.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(words).Of<T>().embedding_forward(tokens.numel(), words.size(1), tokens.size(1),
                                                 tokens.data_ptr<int64_t>(), Data<T>(words),
                                                 DataOrNull<T>(places), Data<T>(y));
    });
    return y;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const WorkScope scope(Work::kEmbedding);
    const Context context = SavedContext(ctx);
    const auto [table, positions] = SavedPair(ctx);
    at::Tensor tokens = ctx->get_saved_variables()[0];
    const at::Tensor dy = gradients[0].contiguous();
    int64_t vocab = context.model->config().vocabulary;
    const auto fp32 = dy.options().dtype(at::kFloat);
    ByType(dy.scalar_type(), [&, table = table, positions = positions](auto type) {
      using T = decltype(type);
      const kernels::TypedKernels<T>& kernels = KernelsOf(dy).Of<T>();
      const at::Tensor& places = context.model->places();
      if (positions >= 0 && (places.defined() || PutsAllOff(context))) {
        at::Tensor here = at::empty({tokens.size(1), dy.size(1)}, fp32);
        kernels::PositionBackward(kernels, dy.size(0), dy.size(1), tokens.size(1), Data<T>(dy),
                                  /*add=*/false, Data<float>(here));
        at::Tensor all = at::zeros(context.model->parameter(positions).sizes(), fp32);
        if (places.defined()) {
          all.index_copy_(0, places, here);
        } else {
          all.narrow(0, 0, tokens.size(1)).copy_(here);
        }
        Deliver(context, positions, all);
      } else if (positions >= 0) {
        // A shorter sample than the table leaves the rest without a gradient.
        const bool is_shorter = tokens.size(1) < context.model->parameter(positions).size(0);
        DeliverTable<T>(context, positions, is_shorter, [&](auto* out, bool add) {
          kernels::PositionBackward(kernels, dy.size(0), dy.size(1), tokens.size(1), Data<T>(dy),
                                    add, out);
        });
      }
      DeliverTable<T>(context, table, /*clears=*/false, [&](auto* out, bool add) {
        kernels::EmbeddingBackward(kernels, dy.size(0), dy.size(1), vocab,
                                   tokens.data_ptr<int64_t>(), Data<T>(dy), add, out);
      });
    });
    return {{}, {}, {}, {}, {}};
  }
};

struct DropoutFunction : torch::autograd::Function<DropoutFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, double probability,
                            int64_t seed, const at::Tensor& rows) {
    const WorkScope scope(Work::kElementwise);
    ctx->saved_data["probability"] = probability;
    ctx->saved_data["seed"] = seed;
    ctx->save_for_backward({rows});
    return Masked(x, probability, seed, rows);
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const WorkScope scope(Work::kElementwise);
    return {Masked(gradients[0].contiguous(), ctx->saved_data["probability"].toDouble(),
                   ctx->saved_data["seed"].toInt(), ctx->get_saved_variables()[0]),
            {},
            {},
            {}};
  }

 private:
  static at::Tensor Masked(const at::Tensor& x, double probability, int64_t seed,
                           const at::Tensor& rows) {
    at::Tensor y = at::empty_like(x);
    ByType(x.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(x).Of<T>().dropout(x.size(0), x.size(1), static_cast<float>(probability),
                                   static_cast<uint64_t>(seed), rows.data_ptr<int64_t>(),
                                   Data<T>(x), Data<T>(y));
    });
    return y;
  }
};

}  // namespace

at::Tensor Linear(const Context& context, const at::Tensor& x, const ParameterPair& layer) {
  return LinearFunction::apply(x, context, layer);
}

std::pair<at::Tensor, at::Tensor> Norm(const Context& context, const at::Tensor& x,
                                       const ParameterPair& norm) {
  variable_list outputs = NormFunction::apply(x, context, norm);
  return {outputs[0], outputs[1]};
}

at::Tensor Gelu(const at::Tensor& x) { return GeluFunction::apply(x); }
at::Tensor Swiglu(const at::Tensor& x) { return SwigluFunction::apply(x); }

at::Tensor Embedding(const Context& context, const at::Tensor& tokens, int table, int positions) {
  at::Tensor anchor = at::empty({0}, context.model->parameter(table).options().dtype(at::kFloat));
  anchor.set_requires_grad(context.sink != nullptr);
  return EmbeddingFunction::apply(anchor, tokens, context, table, positions);
}

at::Tensor Dropout(const at::Tensor& x, double probability, uint64_t key, int64_t place,
                   const at::Tensor& rows) {
  uint64_t state = key + static_cast<uint64_t>(place) * 0x9E3779B97F4A7C15ULL;
  return DropoutFunction::apply(x, probability, static_cast<int64_t>(SplitMix64(state)), rows);
}

}  // namespace weft::train::operations
