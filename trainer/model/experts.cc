// Experts of operations.h. The exchange of one piece of rows runs under the matrix products of
// another, forward and backward, and in the backward pass the last ones under the products that
// give the weights' gradients.
#include <algorithm>
#include <vector>

#include "trainer/model/deliver.h"
#include "trainer/model/expert_axis.h"

namespace weft::train::operations {
namespace {

using Plan = ExpertAxis::Plan;

// One argument to LibTorch, which would take a vector apart.
struct Parameters {
  std::vector<Expert> here;
};

void SaveExperts(AutogradContext* ctx, const std::vector<Expert>& experts) {
  std::vector<int64_t> numbers;
  for (const Expert& expert : experts) {
    for (const ParameterPair& pair : {expert.in, expert.out}) {
      numbers.push_back(pair.weight);
      numbers.push_back(pair.bias);
    }
  }
  ctx->saved_data["experts"] = numbers;
}
std::vector<Expert> SavedExperts(AutogradContext* ctx) {
  const std::vector<int64_t> numbers = ctx->saved_data["experts"].toIntVector();
  auto pair = [&numbers](size_t at) {
    return ParameterPair{static_cast<int>(numbers[at]), static_cast<int>(numbers[at + 1])};
  };
  std::vector<Expert> experts;
  for (size_t i = 0; i < numbers.size(); i += 4) experts.push_back({pair(i), pair(i + 2)});
  return experts;
}

at::Tensor Activated(const ModelConfig& config, const at::Tensor& inner) {
  at::Tensor y = at::empty({inner.size(0), config.ffn}, inner.options());
  ByType(inner.scalar_type(), [&](auto type) {
    using T = decltype(type);
    if (config.IsGated()) {
      KernelsOf(inner).Of<T>().swiglu_forward(inner.size(0), config.ffn, Data<T>(inner),
                                              Data<T>(y));
    } else {
      KernelsOf(inner).Of<T>().gelu_forward(inner.numel(), Data<T>(inner), Data<T>(y));
    }
  });
  return y;
}

void ActivatedBackward(const ModelConfig& config, const at::Tensor& dy, const at::Tensor& inner,
                       const at::Tensor& dinner) {
  ByType(inner.scalar_type(), [&](auto type) {
    using T = decltype(type);
    if (config.IsGated()) {
      KernelsOf(inner).Of<T>().swiglu_backward(inner.size(0), config.ffn, Data<T>(dy),
                                               Data<T>(inner), Data<T>(dinner));
    } else {
      KernelsOf(inner).Of<T>().gelu_backward(inner.numel(), Data<T>(dy), Data<T>(inner),
                                             Data<T>(dinner));
    }
  });
}

// Sends `rows` piece by piece into `received`, calls body(expert, first row, rows) for rows of a
// piece, which writes those rows of `results`, and sends them back into the rows of what it
// returns; the last are under way as it returns. A rank's own rows need no exchange: while more of
// others' rows are awaited than have been multiplied so far, those of the next pieces are; those of
// the last pieces are left for the time in which the last rows go back. (So a row may be under way
// for as long as its product takes.) Which rows these are depends on counts alone: the same run has
// the same sums.
struct RoundTrip {
  at::Tensor returned;
  std::vector<Pending> pending;
};
template <typename Body>
RoundTrip GoRound(const ExpertAxis& axis, const Plan& plan, const at::Tensor& rows,
                  const at::Tensor& received, const at::Tensor& results, Body body) {
  RoundTrip trip{at::empty_like(rows), {}};
  const int pieces = axis.pieces(), last = pieces - 1;
  std::vector<ExpertAxis::PieceParts> parts;
  std::vector<Pending> arriving;
  for (int piece = 0; piece < pieces; ++piece) {
    parts.push_back(axis.PartsOf(plan, piece));
    arriving.push_back(axis.StartDispatch(plan, piece, rows, received));
    axis.CopyOwnThere(plan, piece, rows, received);
  }
  const auto others_of = [&](int piece) {
    const ExpertAxis::PieceParts& part = parts[static_cast<size_t>(piece)];
    return part.before.rows + part.behind.rows;
  };
  const auto own_of = [&](int piece) { return parts[static_cast<size_t>(piece)].own.rows; };
  int64_t multiplied = 0;
  const auto multiply = [&](int piece, int64_t begin, int64_t count) {
    if (count == 0) return;
    body(static_cast<size_t>(piece / axis.pieces_of_expert()), begin, count);
    multiplied += count;
  };
  const auto multiply_own = [&](int piece) {
    multiply(piece, parts[static_cast<size_t>(piece)].own.begin, own_of(piece));
    axis.CopyOwnBack(plan, piece, results, trip.returned);
  };

  int left = pieces;  // own rows of this and the following pieces come last
  for (int64_t own = 0; left > 1 && own < others_of(last);) {
    own += own_of(--left);
  }
  int ahead = 0;  // own rows of the pieces before this one are done
  int64_t arrived = 0;
  for (int piece = 0; piece < pieces; ++piece) {
    const ExpertAxis::PieceParts& part = parts[static_cast<size_t>(piece)];
    arrived += others_of(piece);
    ahead = std::max(ahead, piece);
    while (ahead < left && multiplied < arrived) multiply_own(ahead++);
    axis.Wait(arriving[static_cast<size_t>(piece)]);
    const bool is_whole = piece >= ahead && piece < left;
    if (is_whole) {
      multiply(piece, plan.PieceBegin(piece), plan.PieceRows(piece));
    } else {
      multiply(piece, part.before.begin, part.before.rows);
      multiply(piece, part.behind.begin, part.behind.rows);
    }
    trip.pending.push_back(axis.StartReturn(plan, piece, results, trip.returned));
    if (is_whole) axis.CopyOwnBack(plan, piece, results, trip.returned);
  }
  for (int piece = left; piece < pieces; ++piece) multiply_own(piece);
  return trip;
}
void FinishRound(const ExpertAxis& axis, RoundTrip& trip) {
  for (Pending& pending : trip.pending) axis.Wait(pending);
}

// Sums of rows by token, times `scale`, in fp32: [tokens, width].
at::Tensor SumByToken(int64_t tokens, const at::Tensor& token, const at::Tensor& rows,
                      double scale = 1) {
  return at::zeros({tokens, rows.size(1)}, rows.options().dtype(at::kFloat))
      .index_add_(0, token, rows.to(at::kFloat), scale);
}

struct ExpertsFunction : torch::autograd::Function<ExpertsFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weights,
                            const Context& context, const Routing& routing,
                            const Parameters& parameters) {
    SaveContext(ctx, context);
    SaveExperts(ctx, parameters.here);
    const ModelConfig& config = context.model->config();
    const ExpertAxis& axis = *context.model->experts();
    // Choices that are kept, by expert.
    const at::Tensor kept = routing.kept.flatten().nonzero().view({-1});
    const at::Tensor experts = routing.choices.flatten().index_select(0, kept);
    const at::Tensor order = std::get<1>(experts.sort(/*stable=*/true, 0, /*descending=*/false));
    const at::Tensor slots = kept.index_select(0, order);
    const at::Tensor token = slots.div(config.top_k, "floor");
    const at::Tensor counts = at::bincount(experts, {}, config.experts);
    const at::Tensor counts_here = axis.ExchangeCounts(counts);
    const Plan plan = axis.MakePlan(counts, counts_here);

    const at::Tensor rows = x.index_select(0, token);
    const at::Tensor received = at::empty({plan.rows_received, x.size(1)}, x.options());
    const at::Tensor inner =
        at::empty({plan.rows_received, config.ffn * (config.IsGated() ? 2 : 1)}, x.options());
    const at::Tensor results = at::empty_like(received);
    RoundTrip trip = GoRound(
        axis, plan, rows, received, results, [&](size_t expert, int64_t begin, int64_t count) {
          const Expert& layers = parameters.here[expert];
          const at::Tensor hidden = inner.narrow(0, begin, count);
          MultiplyInto(context, received.narrow(0, begin, count), layers.in, hidden);
          MultiplyInto(context, Activated(config, hidden), layers.out,
                       results.narrow(0, begin, count));
        });
    FinishRound(axis, trip);
    const at::Tensor weight = weights.flatten().index_select(0, slots).unsqueeze(1);
    ctx->save_for_backward({received, inner, trip.returned, weights, slots, counts, counts_here});
    return SumByToken(x.size(0), token, trip.returned.to(at::kFloat) * weight).to(x.scalar_type());
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& gradients) {
    const Context context = SavedContext(ctx);
    const std::vector<Expert> experts = SavedExperts(ctx);
    const ModelConfig& config = context.model->config();
    const ExpertAxis& axis = *context.model->experts();
    const variable_list saved = ctx->get_saved_variables();
    const at::Tensor &received = saved[0], &inner = saved[1], &returned = saved[2],
                     &weights = saved[3], &slots = saved[4];
    const Plan plan = axis.MakePlan(saved[5], saved[6]);
    const at::Tensor token = slots.div(config.top_k, "floor");
    const at::Tensor dy = gradients[0].contiguous();
    const at::Tensor drows = dy.index_select(0, token).to(at::kFloat);
    // Gradients go to the experts times the scale of the gradients of their parameters, so that
    // nothing is scaled there, and come back times it.
    const double scale = axis.gradient_scale();
    const at::Tensor weight = weights.flatten().index_select(0, slots).unsqueeze(1) * scale;
    const at::Tensor dweights = at::zeros({weights.numel()}, weights.options().dtype(at::kFloat))
                                    .index_copy_(0, slots, (drows * returned.to(at::kFloat)).sum(1))
                                    .view(weights.sizes());

    const at::Tensor dresults = at::empty_like(received), dreceived = at::empty_like(received);
    const at::Tensor dinner = at::empty_like(inner);
    RoundTrip trip = GoRound(
        axis, plan, (drows * weight).to(dy.scalar_type()), dresults, dreceived,
        [&](size_t expert, int64_t begin, int64_t count) {
          const Expert& layers = experts[expert];
          const at::Tensor dhidden = dinner.narrow(0, begin, count);
          const at::Tensor dactive = at::empty({count, config.ffn}, dy.options());
          InputGradientInto(context, dresults.narrow(0, begin, count), layers.out.weight, dactive);
          ActivatedBackward(config, dactive, inner.narrow(0, begin, count), dhidden);
          InputGradientInto(context, dhidden, layers.in.weight, dreceived.narrow(0, begin, count));
        });
    for (size_t expert = 0; expert < experts.size(); ++expert) {
      const int first = axis.PieceOf(static_cast<int64_t>(expert), 0);
      int64_t count = 0;
      for (int part = 0; part < axis.pieces_of_expert(); ++part)
        count += plan.PieceRows(first + part);
      auto own = [begin = plan.PieceBegin(first), count](const at::Tensor& rows) {
        return rows.narrow(0, begin, count);
      };
      DeliverLinear(context, experts[expert].in, own(dinner), own(received));
      DeliverLinear(context, experts[expert].out, own(dresults), Activated(config, own(inner)));
    }
    FinishRound(axis, trip);
    return {SumByToken(dy.size(0), token, trip.returned, 1 / scale).to(dy.scalar_type()),
            dweights,
            {},
            {},
            {}};
  }
};

}  // namespace

at::Tensor Experts(const Context& context, const at::Tensor& x, const Routing& routing,
                   const std::vector<Expert>& experts_here) {
  return ExpertsFunction::apply(x, routing.weights, context, routing, Parameters{experts_here});
}

}  // namespace weft::train::operations
