// Attention of operations.h.
#include "trainer/model/attention_tiles.h"
#include "trainer/model/deliver.h"
#include "trainer/profile/work_time.h"

namespace weft::train::operations {
namespace {

// Queries and keys of every row, in place.
void Rotate(const Gpt& model, at::TensorList projections, int64_t length, bool inverse) {
  const ModelConfig& config = model.config();
  if (config.position != PositionKind::kRotary) return;
  const int64_t width = config.hidden / config.heads;
  for (size_t i = 0; i < projections.size(); ++i) {
    const at::Tensor& rows = projections[i];
    // Values stand behind the keys, and are not turned.
    const int64_t heads = projections.size() == 1 ? 2 * model.heads()
                          : i == 0                ? model.heads()
                                                  : rows.size(1) / width / 2;
    ByType(rows.scalar_type(), [&](auto type) {
      using T = decltype(type);
      KernelsOf(rows).Of<T>().rotate(rows.size(0), length, heads, width, rows.size(1),
                                     Data<float>(model.cosine()), Data<float>(model.sine()),
                                     inverse, Data<T>(rows));
    });
  }
}

// Views of what Attention of operations.h takes.
AttentionInputs SplitHeads(const Gpt& model, at::TensorList projections, int64_t length) {
  const int64_t batch = projections[0].size(0) / length;
  const int64_t width = model.config().hidden / model.config().heads;
  if (projections.size() == 1) {
    const at::Tensor parts = projections[0].view({batch, length, 3, model.heads(), width});
    return {parts.select(2, 0).transpose(1, 2), parts.select(2, 1).transpose(1, 2),
            parts.select(2, 2).transpose(1, 2)};
  }
  const at::Tensor query = projections[0].view({batch, length, model.heads(), width});
  const at::Tensor both = projections[1]
                              .view({batch, length, 2, -1, width})
                              .narrow(3, model.first_kv_head(), model.kv_heads());
  return {query.transpose(1, 2), both.select(2, 0).transpose(1, 2),
          both.select(2, 1).transpose(1, 2)};
}

bool ExchangesHeads(const Gpt& model) {
  return model.context() != nullptr && model.context()->method() == ContextMethod::kUlysses;
}

// All of it as one piece, but for heads that are exchanged.
AttendedHeads Compute(const Gpt& model, const AttentionInputs& inputs, int64_t window) {
  const KernelLibrary library = model.attention_library(window);
  if (ExchangesHeads(model)) return AttendByHeads(*model.context(), library, inputs, window);
  const AttentionOutputs outputs = model.context() == nullptr
                                       ? Attend(library, inputs, window)
                                       : AttendAround(*model.context(), library, inputs, window);
  return {outputs.out, {{inputs, outputs}}};
}

void ComputeBackward(const Gpt& model, const at::Tensor& dout,
                     const std::vector<AttentionPiece>& pieces, int64_t window,
                     const AttentionInputs& gradients) {
  const KernelLibrary library = model.attention_library(window);
  if (ExchangesHeads(model)) {
    AttendByHeadsBackward(*model.context(), library, dout, pieces, window, gradients);
    return;
  }
  const auto& [inputs, outputs] = pieces[0];
  if (model.context() == nullptr) {
    AttendBackward(library, dout, inputs, outputs, window, gradients);
  } else {
    AttendAroundBackward(*model.context(), library, dout, inputs, outputs, window, gradients);
  }
}

void SavePieces(AutogradContext* ctx, const std::vector<AttentionPiece>& pieces) {
  variable_list tensors;
  for (const auto& [inputs, outputs] : pieces) {
    for (const at::Tensor& tensor :
         {inputs.query, inputs.key, inputs.value, outputs.out, outputs.logsumexp}) {
      tensors.push_back(tensor);
    }
  }
  ctx->save_for_backward(std::move(tensors));
}
std::vector<AttentionPiece> SavedPieces(AutogradContext* ctx) {
  const variable_list tensors = ctx->get_saved_variables();
  std::vector<AttentionPiece> pieces;
  for (size_t i = 0; i < tensors.size(); i += 5) {
    pieces.push_back(
        {{tensors[i], tensors[i + 1], tensors[i + 2]}, {tensors[i + 3], tensors[i + 4]}});
  }
  return pieces;
}

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList projections,
                            const Context& context, int64_t length, int64_t window) {
    const WorkScope scope(Work::kAttention);
    const Gpt& model = *context.model;
    SaveContext(ctx, context);
    ctx->saved_data["length"] = length;
    ctx->saved_data["window"] = window;
    std::vector<int64_t> widths;
    for (const at::Tensor& rows : projections) widths.push_back(rows.size(1));
    ctx->saved_data["widths"] = widths;
    Rotate(model, projections, length, /*inverse=*/false);
    const AttendedHeads attended = Compute(model, SplitHeads(model, projections, length), window);
    SavePieces(ctx, attended.pieces);
    return attended.out.transpose(1, 2).reshape({projections[0].size(0), -1});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const WorkScope scope(Work::kAttention);
    const Context context = SavedContext(ctx);
    const Gpt& model = *context.model;
    const int64_t length = ctx->saved_data["length"].toInt();
    const std::vector<AttentionPiece> pieces = SavedPieces(ctx);
    const at::Tensor dout = gradients[0].contiguous();
    const at::Tensor by_heads =
        dout.view({dout.size(0) / length, length, model.heads(), -1}).transpose(1, 2);
    variable_list results;
    for (int64_t width : ctx->saved_data["widths"].toIntVector()) {
      results.push_back(at::empty({dout.size(0), width}, dout.options()));
    }
    // Key-value heads that this rank does not use have no gradient here.
    if (results.size() > 1) results[1].zero_();
    ComputeBackward(model, by_heads, pieces, ctx->saved_data["window"].toInt(),
                    SplitHeads(model, results, length));
    Rotate(model, results, length, /*inverse=*/true);
    results.resize(results.size() + 3);  // none for the other arguments
    return results;
  }
};

}  // namespace

at::Tensor Attention(const Context& context, const std::vector<at::Tensor>& projections,
                     int64_t length, int64_t layer) {
  return AttentionFunction::apply(at::TensorList(projections), context, length,
                                  context.model->config().WindowOf(layer));
}

}  // namespace weft::train::operations
