// The operations over a tensor axis. In each, the exchange of one chunk of rows runs under the
// matrix product of another, forward and backward, and in the backward pass the exchanges run under
// the products that give the weights' gradients (MegaScale, section 3.2).
#include "trainer/model/deliver.h"

namespace weft::train::operations {
namespace {

using Exchange = TensorAxis::Exchange;

// One argument to LibTorch, which would take a vector apart.
struct Layers {
  std::vector<ParameterPair> list;
};

void SaveLayers(AutogradContext* ctx, const std::vector<ParameterPair>& layers) {
  std::vector<int64_t> numbers;
  for (const ParameterPair& layer : layers) {
    numbers.push_back(layer.weight);
    numbers.push_back(layer.bias);
  }
  ctx->saved_data["layers"] = numbers;
}
std::vector<ParameterPair> SavedLayers(AutogradContext* ctx) {
  const std::vector<int64_t> numbers = ctx->saved_data["layers"].toIntVector();
  std::vector<ParameterPair> layers;
  for (size_t i = 0; i < numbers.size(); i += 2) {
    layers.push_back({static_cast<int>(numbers[i]), static_cast<int>(numbers[i + 1])});
  }
  return layers;
}

// The sum of xs[i] * weight^T or, for kInputGradient, xs[i] * weight over the layers, the chunk's
// rows, into `out`.
void MultiplyChunk(const Context& context, GemmPass pass, const std::vector<at::Tensor>& xs,
                   const std::vector<ParameterPair>& layers, const Exchange& exchange, size_t chunk,
                   const at::Tensor& out) {
  for (size_t i = 0; i < xs.size(); ++i) {
    const at::Tensor& weight = context.model->parameter(layers[i].weight);
    Multiply(context.model->gemm(), exchange.ChunkOf(xs[i], chunk),
             pass == GemmPass::kForward ? weight.t() : weight, out, /*add=*/i > 0, {},
             context.model->packed(layers[i].weight, pass));
  }
}

struct GatherLinearFunction : torch::autograd::Function<GatherLinearFunction> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x, const Context& context,
                               const Layers& wanted) {
    const std::vector<ParameterPair>& layers = wanted.list;
    SaveContext(ctx, context);
    SaveLayers(ctx, layers);
    const TensorAxis& axis = *context.model->axis();
    Exchange gather = axis.StartGather(x);
    // Where the gathered rows are not kept, the backward pass gathers them again, under its
    // products.
    ctx->save_for_backward({axis.keeps_gathered() ? gather.full : x});
    variable_list outputs;
    for (const ParameterPair& layer : layers) {
      const int64_t width = context.model->parameter(layer.weight).size(0);
      outputs.push_back(at::empty({gather.full.size(0), width}, x.options()));
    }
    for (size_t chunk = 0; chunk < gather.chunks(); ++chunk) {
      axis.Wait(gather, chunk);
      const at::Tensor rows = gather.Chunk(chunk);
      for (size_t i = 0; i < layers.size(); ++i) {
        MultiplyInto(context, rows, layers[i], gather.ChunkOf(outputs[i], chunk));
      }
    }
    return outputs;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Context context = SavedContext(ctx);
    const std::vector<ParameterPair> layers = SavedLayers(ctx);
    const TensorAxis& axis = *context.model->axis();
    const at::Tensor saved = ctx->get_saved_variables()[0];
    Exchange gather;
    if (axis.keeps_gathered()) {
      gather.full = saved;
    } else {
      gather = axis.StartGather(saved);
    }
    std::vector<at::Tensor> dys;
    for (size_t i = 0; i < layers.size(); ++i) dys.push_back(gradients[i].contiguous());
    Exchange scatter =
        axis.PrepareScatter(gather.full.size(0), gather.full.size(1), gather.full.options());
    for (size_t chunk = 0; chunk < scatter.chunks(); ++chunk) {
      MultiplyChunk(context, GemmPass::kInputGradient, dys, layers, scatter, chunk,
                    scatter.Chunk(chunk));
      axis.StartScatter(scatter, chunk);
    }
    axis.WaitAll(gather);
    for (size_t i = 0; i < layers.size(); ++i) {
      DeliverLinear(context, layers[i], dys[i], gather.full);
    }
    axis.WaitAll(scatter);
    return {scatter.held, {}, {}};
  }
};

struct LinearScatterFunction : torch::autograd::Function<LinearScatterFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList xs, const Context& context,
                            const Layers& wanted) {
    const std::vector<ParameterPair>& layers = wanted.list;
    SaveContext(ctx, context);
    SaveLayers(ctx, layers);
    std::vector<at::Tensor> inputs(xs.begin(), xs.end());
    ctx->save_for_backward(inputs);
    const TensorAxis& axis = *context.model->axis();
    Exchange scatter = axis.PrepareScatter(
        inputs[0].size(0), context.model->parameter(layers[0].weight).size(0), inputs[0].options());
    for (size_t chunk = 0; chunk < scatter.chunks(); ++chunk) {
      MultiplyChunk(context, GemmPass::kForward, inputs, layers, scatter, chunk,
                    scatter.Chunk(chunk));
      axis.StartScatter(scatter, chunk);
    }
    axis.WaitAll(scatter);
    for (const ParameterPair& layer : layers) {
      if (layer.bias >= 0) scatter.held.add_(context.model->parameter(layer.bias));
    }
    return scatter.held;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Context context = SavedContext(ctx);
    const std::vector<ParameterPair> layers = SavedLayers(ctx);
    const std::vector<at::Tensor> xs = ctx->get_saved_variables();
    const TensorAxis& axis = *context.model->axis();
    const at::Tensor dy = gradients[0].contiguous();
    Exchange gather = axis.StartGather(dy);
    variable_list dxs;
    for (const at::Tensor& x : xs) dxs.push_back(at::empty_like(x));
    for (const ParameterPair& layer : layers) {
      if (layer.bias >= 0) Deliver(context, layer.bias, dy.sum(0));
    }
    for (size_t chunk = 0; chunk < gather.chunks(); ++chunk) {
      axis.Wait(gather, chunk);
      for (size_t i = 0; i < layers.size(); ++i) {
        InputGradientInto(context, gather.Chunk(chunk), layers[i].weight,
                          gather.ChunkOf(dxs[i], chunk));
      }
    }
    for (size_t i = 0; i < layers.size(); ++i) {
      DeliverLinear(context, {layers[i].weight, -1}, gather.full, xs[i]);
    }
    dxs.resize(layers.size() + 2);  // none for the other arguments
    return dxs;
  }
};

struct SplitEmbeddingFunction : torch::autograd::Function<SplitEmbeddingFunction> {
  // `anchor` has no use but that it requires a gradient, so that this node is in the graph.
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& anchor,
                            const at::Tensor& tokens, const Context& context, int table,
                            int positions) {
    (void)anchor;
    SaveContext(ctx, context);
    SavePair(ctx, {table, positions});
    const TensorAxis& axis = *context.model->axis();
    const at::Tensor& words = context.model->parameter(table);
    // Rows of this rank's table; -1: another rank has the token.
    at::Tensor local = tokens - context.model->first_token();
    local.masked_fill_((local < 0).logical_or_(local >= words.size(0)), -1);
    const at::Tensor places =
        context.model->PlacesOf(axis.RowsHeld(tokens.numel()).to(tokens.device()), tokens.size(1));
    ctx->save_for_backward({local, places});
    Exchange scatter = axis.PrepareScatter(tokens.numel(), words.size(1), words.options());
    ByType(words.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(words).Of<T>().embedding_forward(local.numel(), words.size(1), tokens.size(1),
                                                 local.data_ptr<int64_t>(), Data<T>(words),
                                                 /*positions=*/nullptr, Data<T>(scatter.full));
    });
    for (size_t chunk = 0; chunk < scatter.chunks(); ++chunk) {
      axis.StartScatter(scatter, chunk);
    }
    axis.WaitAll(scatter);
    if (positions >= 0) {
      const at::Tensor& table_of_positions = context.model->parameter(positions);
      scatter.held.add_(table_of_positions.index_select(0, places));
    }
    return scatter.held;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Context context = SavedContext(ctx);
    const auto [table, positions] = SavedPair(ctx);
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor& local = saved[0];
    const TensorAxis& axis = *context.model->axis();
    const at::Tensor dy = gradients[0].contiguous();
    Exchange gather = axis.StartGather(dy);
    if (positions >= 0) {
      at::Tensor gradient =
          at::zeros(context.model->parameter(positions).sizes(), dy.options().dtype(at::kFloat));
      gradient.index_add_(0, saved[1], dy.to(at::kFloat));
      Deliver(context, positions, gradient);
    }
    axis.WaitAll(gather);
    ByType(dy.scalar_type(), [&, table = table](auto type) {
      using T = decltype(type);
      DeliverTable<T>(context, table, /*clears=*/false, [&](auto* out, bool add) {
        kernels::EmbeddingBackward(KernelsOf(dy).Of<T>(), local.numel(), dy.size(1),
                                   context.model->parameter(table).size(0),
                                   local.data_ptr<int64_t>(), Data<T>(gather.full), add, out);
      });
    });
    return {{}, {}, {}, {}, {}};
  }
};

}  // namespace

std::vector<at::Tensor> GatherLinear(const Context& context, const at::Tensor& x,
                                     const std::vector<ParameterPair>& layers) {
  return GatherLinearFunction::apply(x, context, Layers{layers});
}

at::Tensor LinearScatter(const Context& context, const std::vector<at::Tensor>& xs,
                         const std::vector<ParameterPair>& layers) {
  return LinearScatterFunction::apply(at::TensorList(xs), context, Layers{layers});
}

at::Tensor SplitEmbedding(const Context& context, const at::Tensor& tokens, int table,
                          int positions) {
  at::Tensor anchor = at::empty({0}, context.model->parameter(table).options().dtype(at::kFloat));
  anchor.set_requires_grad(context.sink != nullptr);
  return SplitEmbeddingFunction::apply(anchor, tokens, context, table, positions);
}

}  // namespace weft::train::operations
