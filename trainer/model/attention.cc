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

// All rows of this rank's heads, from the rows held of all heads.
AttentionInputs ExchangeForHeads(const Gpt& model, const AttentionInputs& inputs) {
  const int64_t repeats = RepeatsOfHeads(model.heads(), model.kv_heads(), model.context()->size());
  const std::vector<at::Tensor> parts =
      ToHeads(*model.context(), {inputs.query, inputs.key.repeat_interleave(repeats, 1),
                                 inputs.value.repeat_interleave(repeats, 1)});
  return {parts[0], parts[1], parts[2]};
}

AttentionOutputs Compute(const Gpt& model, const AttentionInputs& inputs, int64_t window) {
  if (model.context() == nullptr || ExchangesHeads(model)) {
    return Attend(model.attention_library(window), inputs, window);
  }
  return AttendAround(*model.context(), model.attention_library(window), inputs, window);
}

void ComputeBackward(const Gpt& model, const at::Tensor& dout, const AttentionInputs& inputs,
                     const AttentionOutputs& outputs, int64_t window,
                     const AttentionInputs& gradients) {
  if (model.context() == nullptr) {
    AttendBackward(model.attention_library(window), dout, inputs, outputs, window, gradients);
    return;
  }
  if (!ExchangesHeads(model)) {
    AttendAroundBackward(*model.context(), model.attention_library(window), dout, inputs, outputs,
                         window, gradients);
    return;
  }
  const AttentionInputs mine{at::empty_like(inputs.query), at::empty_like(inputs.key),
                             at::empty_like(inputs.value)};
  AttendBackward(model.attention_library(window), ToHeads(*model.context(), {dout})[0], inputs,
                 outputs, window, mine);
  const std::vector<at::Tensor> rows = ToRows(*model.context(), {mine.query, mine.key, mine.value});
  gradients.query.copy_(rows[0]);
  const int64_t kv_heads = gradients.key.size(1);
  gradients.key.copy_(rows[1].unflatten(1, {kv_heads, -1}).sum(2));
  gradients.value.copy_(rows[2].unflatten(1, {kv_heads, -1}).sum(2));
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
    AttentionInputs inputs = SplitHeads(model, projections, length);
    if (ExchangesHeads(model)) inputs = ExchangeForHeads(model, inputs);
    const AttentionOutputs outputs = Compute(model, inputs, window);
    ctx->save_for_backward(
        {inputs.query, inputs.key, inputs.value, outputs.out, outputs.logsumexp});
    const at::Tensor out =
        ExchangesHeads(model) ? ToRows(*model.context(), {outputs.out})[0] : outputs.out;
    return out.transpose(1, 2).reshape({projections[0].size(0), -1});
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const WorkScope scope(Work::kAttention);
    const Context context = SavedContext(ctx);
    const Gpt& model = *context.model;
    const int64_t length = ctx->saved_data["length"].toInt();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor dout = gradients[0].contiguous();
    const at::Tensor by_heads =
        dout.view({dout.size(0) / length, length, model.heads(), -1}).transpose(1, 2);
    variable_list results;
    for (int64_t width : ctx->saved_data["widths"].toIntVector()) {
      results.push_back(at::empty({dout.size(0), width}, dout.options()));
    }
    // Key-value heads that this rank does not use have no gradient here.
    if (results.size() > 1) results[1].zero_();
    ComputeBackward(model, by_heads, {saved[0], saved[1], saved[2]}, {saved[3], saved[4]},
                    ctx->saved_data["window"].toInt(), SplitHeads(model, results, length));
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
