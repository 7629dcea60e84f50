// Attention of operations.h.
#include "trainer/model/attention_tiles.h"
#include "trainer/model/deliver.h"

namespace weft::operations {
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
      Kernels().Of<T>().rotate(rows.size(0), length, heads, width, rows.size(1),
                               Data<float>(model.cosine()), Data<float>(model.sine()), inverse,
                               Data<T>(rows));
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

struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  static at::Tensor forward(AutogradContext* ctx, at::TensorList projections,
                            const Context& context, int64_t length, int64_t window) {
    SaveContext(ctx, context);
    ctx->saved_data["length"] = length;
    ctx->saved_data["window"] = window;
    Rotate(*context.model, projections, length, /*inverse=*/false);
    const AttentionInputs inputs = SplitHeads(*context.model, projections, length);
    const AttentionOutputs outputs = Attend(inputs, window);
    variable_list saved(projections.begin(), projections.end());
    saved.push_back(outputs.out);
    saved.push_back(outputs.logsumexp);
    ctx->save_for_backward(std::move(saved));
    return outputs.out.transpose(1, 2).reshape({projections[0].size(0), -1});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Context context = SavedContext(ctx);
    const int64_t length = ctx->saved_data["length"].toInt();
    const variable_list saved = ctx->get_saved_variables();
    const variable_list projections(saved.begin(), saved.end() - 2);
    const AttentionInputs inputs = SplitHeads(*context.model, projections, length);
    const at::Tensor& query = inputs.query;
    const at::Tensor dout =
        gradients[0].contiguous().view({query.size(0), length, query.size(1), query.size(3)});
    // Key-value heads that this rank does not use have no gradient here.
    const bool uses_all =
        projections.size() == 1 || projections[1].size(1) == 2 * inputs.key.size(1) * query.size(3);
    variable_list results;
    for (const at::Tensor& rows : projections) {
      results.push_back(uses_all ? at::empty_like(rows) : at::zeros_like(rows));
    }
    AttendBackward(dout.transpose(1, 2), inputs, {saved[saved.size() - 2], saved.back()},
                   ctx->saved_data["window"].toInt(), SplitHeads(*context.model, results, length));
    Rotate(*context.model, results, length, /*inverse=*/true);
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

}  // namespace weft::operations
