// Route of operations.h: which experts a token goes to, in fp32.
//
// Balance loss: for a sample of T tokens, f_e = experts x (choices of e) / (k T) and p_te the
// router's probability, the mean over t of sum_e f_e p_te (Fedus et al., "Switch transformers",
// 2022, equation 4, for each sample by itself as in DeepSeek-V2, 2024, section 2.1.4), so that a
// layout changes nothing. Router z loss: the mean of logsumexp(logits)^2 (Zoph et al., "ST-MoE",
// 2022, equation 5). Both are added to the loss, for each layer, times their weights.
#include <algorithm>
#include <cmath>

#include "trainer/groups/status_error.h"
#include "trainer/model/deliver.h"

namespace weft::train::operations {
namespace {

// What Route knows before LibTorch's graph: all fp32 but the choices.
struct Scores {
  at::Tensor probabilities;  // [rows, experts]
  at::Tensor logsumexp;      // [rows]
  at::Tensor choices;        // int64 [rows, k]
  at::Tensor kept;           // bool [rows, k]
  at::Tensor load;           // [rows, experts]: f_e of the row's sample
};

// Choices of all rows of the samples, by position: [samples, tokens, k].
at::Tensor AllChoices(const Gpt& model, const at::Tensor& choices, int64_t length) {
  at::Tensor rows = choices;
  if (model.axis() != nullptr) {
    TensorAxis::Exchange gather = model.axis()->StartGather(choices);
    model.axis()->WaitAll(gather);
    rows = gather.full;
  }
  const int64_t samples = rows.size(0) / length, k = rows.size(1);
  if (model.context() == nullptr) return rows.view({samples, length, k});
  const ContextAxis& context = *model.context();
  at::Tensor all = at::empty({context.size(), samples, length, k}, rows.options());
  Pending pending = ValueOrThrow(context.group().AllGather(all, rows));
  ThrowIfError(context.group().Wait(pending));
  std::vector<at::Tensor> places;
  for (int rank = 0; rank < context.size(); ++rank) {
    places.push_back(context.PositionsOf(rank, length * context.size()).to(all.device()));
  }
  const at::Tensor by_rank = all.transpose(0, 1).reshape({samples, length * context.size(), k});
  return at::empty_like(by_rank).index_copy_(1, at::cat(places), by_rank);
}

// Which choices find a place: of those of a sample for one expert, in the order of the tokens, the
// first ceil(capacity_factor k T / experts). bool, as `all`.
at::Tensor WithinCapacity(const ModelConfig& config, const at::Tensor& all) {
  const int64_t choices = all.size(1) * all.size(2);
  const double capacity = std::ceil(config.capacity_factor * static_cast<double>(choices) /
                                    static_cast<double>(config.experts));
  const at::Tensor flat = all.reshape({all.size(0), choices, 1});
  const at::Tensor seen =
      at::zeros({all.size(0), choices, config.experts}, all.options().dtype(at::kInt))
          .scatter_(2, flat, 1)
          .cumsum(1, at::kInt);
  return seen.gather(2, flat).view(all.sizes()) <= capacity;
}

Scores Score(const Context& context, const at::Tensor& x, int router, int64_t length) {
  const Gpt& model = *context.model;
  const ModelConfig& config = model.config();
  Scores scores;
  const at::Tensor logits = at::mm(x.to(at::kFloat), model.parameter(router).to(at::kFloat).t());
  scores.logsumexp = at::logsumexp(logits, 1);
  scores.probabilities = at::softmax(logits, 1);
  scores.choices = std::get<1>(scores.probabilities.topk(config.top_k, 1)).contiguous();

  const at::Tensor all = AllChoices(model, scores.choices, length);
  const at::Tensor flat = all.reshape({all.size(0), -1});
  const at::Tensor counts = at::zeros({all.size(0), config.experts}, logits.options())
                                .scatter_add_(1, flat, at::ones(flat.sizes(), logits.options()));
  const at::Tensor rows = model.RowsHeld(x.size(0));
  const at::Tensor sample = rows.div(length, "floor");
  scores.load = (counts * (static_cast<double>(config.experts) / static_cast<double>(flat.size(1))))
                    .index_select(0, sample);
  if (config.capacity_factor == 0) {
    scores.kept = at::ones_like(scores.choices, at::kBool);
  } else {
    const at::Tensor token = sample * all.size(1) + model.PlacesOf(rows, length);
    scores.kept = WithinCapacity(config, all).view({-1, config.top_k}).index_select(0, token);
  }
  return scores;
}

// Weights of the choices: one choice its probability; several theirs divided by their sum.
struct RouterFunction : torch::autograd::Function<RouterFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Context& context,
                            int router, const Scores& scores, double token_scale) {
    SaveContext(ctx, context);
    ctx->saved_data["router"] = static_cast<int64_t>(router);
    ctx->saved_data["token_scale"] = token_scale;
    at::Tensor chosen = scores.probabilities.gather(1, scores.choices);
    const at::Tensor sum = scores.choices.size(1) > 1 ? chosen.sum(1, true)
                                                      : at::ones({x.size(0), 1}, chosen.options());
    const at::Tensor weights = chosen / sum;
    ctx->save_for_backward({x, scores.probabilities, scores.logsumexp, scores.choices, scores.kept,
                            scores.load, weights, sum});
    return weights * scores.kept;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Context context = SavedContext(ctx);
    const int router = static_cast<int>(ctx->saved_data["router"].toInt());
    const double scale = ctx->saved_data["token_scale"].toDouble();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &x = saved[0], &probabilities = saved[1], &choices = saved[3],
                     &weights = saved[6];
    const ModelConfig& config = context.model->config();
    at::Tensor dweights = gradients[0] * saved[4];
    if (choices.size(1) > 1) dweights = dweights - (dweights * weights).sum(1, true);
    at::Tensor dprobabilities =
        (saved[5] * (config.balance_loss * scale)).scatter_add_(1, choices, dweights / saved[7]);
    at::Tensor dlogits =
        probabilities * (dprobabilities - (dprobabilities * probabilities).sum(1, true) +
                         (2 * config.router_z_loss * scale) * saved[2].unsqueeze(1));
    Deliver(context, router, at::mm(dlogits.t(), x.to(at::kFloat)));
    return {at::mm(dlogits, context.model->parameter(router).to(at::kFloat)).to(x.scalar_type()),
            {},
            {},
            {},
            {}};
  }
};

}  // namespace

Routing Route(const Context& context, const at::Tensor& x, int router, int64_t length,
              double token_scale, RouterTotals* totals) {
  Scores scores;
  {
    at::NoGradGuard no_grad;
    scores = Score(context, x.detach(), router, length);
  }
  // A block that is recomputed in the backward pass has no graph the first time.
  if (totals != nullptr && at::GradMode::is_enabled()) {
    totals->balance += (scores.load * scores.probabilities).sum(at::kDouble).item<double>();
    totals->z += scores.logsumexp.square().sum(at::kDouble).item<double>();
    totals->choices += scores.kept.numel();
    totals->dropped += scores.kept.numel() - scores.kept.sum().item<int64_t>();
  }
  return {RouterFunction::apply(x, context, router, scores, token_scale), scores.choices,
          scores.kept};
}

}  // namespace weft::train::operations
