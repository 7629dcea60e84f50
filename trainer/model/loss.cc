// The loss, on whole logits (gpt.h) and in chunks of rows (HeadLoss of operations.h).
#include <algorithm>
#include <optional>
#include <vector>

#include "trainer/groups/status_error.h"
#include "trainer/model/deliver.h"
#include "trainer/profile/work_time.h"

namespace weft::train {
namespace {

// Calls `body` with the kernels and the data of the logits' type.
template <typename Body>
void WithLogits(const at::Tensor& logits, Body body) {
  operations::ByType(logits.scalar_type(), [&](auto type) {
    using T = decltype(type);
    body(KernelsOf(logits).Of<T>(), operations::Data<T>(logits));
  });
}

}  // namespace

at::Tensor CrossEntropy(const at::Tensor& logits, const at::Tensor& targets, double scale) {
  const WorkScope scope(Work::kLoss);
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  WithLogits(logits, [&](const auto& kernels, auto* data) {
    kernels.cross_entropy(logits.size(0), logits.size(1), targets.data_ptr<int64_t>(),
                          static_cast<float>(scale), data, losses.data_ptr<float>());
  });
  return losses;
}

at::Tensor SplitCrossEntropy(const at::Tensor& logits, const at::Tensor& targets,
                             int64_t first_token, const TensorAxis& axis, double scale) {
  const int64_t rows = logits.size(0);
  at::Tensor local = targets - first_token;
  local.masked_fill_((local < 0).logical_or_(local >= logits.size(1)), -1);
  // Three numbers a row: largest logit here, sum of exp(logit - largest), target's logit or 0.
  at::Tensor parts = at::empty({rows, 3}, logits.options().dtype(at::kFloat));
  WithLogits(logits, [&](const auto& kernels, auto* data) {
    kernels.cross_entropy_part(rows, logits.size(1), local.data_ptr<int64_t>(), data,
                               parts.data_ptr<float>());
  });
  at::Tensor all = at::empty({axis.size(), rows, 3}, parts.options());
  Pending pending = ValueOrThrow(axis.group().AllGather(all, parts));
  ThrowIfError(axis.group().Wait(pending));
  at::Tensor largest = all.select(2, 0).amax(0);
  at::Tensor sum = (all.select(2, 1) * at::exp(all.select(2, 0) - largest)).sum(0);
  at::Tensor log_sum = (largest + at::log(sum)).contiguous();
  if (scale != 0) {
    WithLogits(logits, [&](const auto& kernels, auto* data) {
      kernels.cross_entropy_gradient(rows, logits.size(1), local.data_ptr<int64_t>(),
                                     static_cast<float>(scale), log_sum.data_ptr<float>(), data);
    });
  }
  return log_sum - all.select(2, 2).sum(0);
}

int64_t LossRows(int64_t rows, int64_t vocabulary, int64_t element_bytes, int64_t wanted,
                 bool on_gpu) {
  // Logits of a chunk: half of a common last-level cache, but rows enough that the products with
  // the output projection are bound by arithmetic; for a GPU's those are many more.
  const int64_t bytes = on_gpu ? 256 << 20 : 16 << 20;
  constexpr int64_t kFewest = 256;
  const int64_t most =
      wanted > 0 ? wanted : std::max(kFewest, bytes / (vocabulary * element_bytes));
  const int64_t chunks = (rows + most - 1) / most;
  return (rows + chunks - 1) / chunks;
}

namespace operations {
namespace {

// The gradient of the output projection, added up over the chunks: in the sink's memory where the
// sink takes it now, else in a tensor of its own. In fp32 unless one chunk has all rows.
class HeadGradient {
 public:
  HeadGradient(const Context& context, int head, bool is_whole)
      : context_(context), head_(head), is_early_(context.sink->TakesAnyOrder()) {
    const at::Tensor& weight = context.model->parameter(head);
    if (is_early_) target_ = context.sink->Begin(head);
    const bool fits = is_early_ && (is_whole || target_.tensor.scalar_type() == at::kFloat);
    sum_ = fits ? target_
                : GradientTarget{at::empty(
                      weight.sizes(),
                      weight.options().dtype(is_whole ? weight.scalar_type() : at::kFloat))};
    is_target_ = fits;
  }
  void Add(const at::Tensor& dlogits, const at::Tensor& x) {
    Multiply(context_.model->gemm(), dlogits.t(), x, sum_.tensor, sum_.add);
    sum_.add = true;
  }
  // After the last chunk: what the backward pass has to hand to the sink, if anything.
  at::Tensor Finish() {
    if (!is_early_) return sum_.tensor;
    if (!is_target_) DeliverTo(target_, sum_.tensor);
    context_.sink->End(head_);
    return {};
  }

 private:
  const Context context_;
  const int head_;
  const bool is_early_;
  bool is_target_ = false;
  GradientTarget target_, sum_;
};

struct HeadLossFunction : torch::autograd::Function<HeadLossFunction> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const Context& context,
                            int head, const LossRequest& request) {
    const WorkScope scope(Work::kLoss);
    SaveContext(ctx, context);
    SavePair(ctx, {head, -1});
    const TensorAxis* axis = context.model->axis();
    const bool trains = request.scale != 0;
    TensorAxis::Exchange gather, scatter;
    at::Tensor rows = x, dx;
    std::vector<int64_t> begins = {0, x.size(0)};
    if (axis != nullptr) {
      gather = axis->StartGather(x);
      rows = gather.full;
      begins = gather.begins;
      if (trains) scatter = axis->PrepareScatter(rows.size(0), rows.size(1), rows.options());
      dx = scatter.full;
    } else if (trains) {
      dx = at::empty_like(x);
    }
    const at::Tensor& weight = context.model->parameter(head);
    const size_t stretches = begins.size() - 1;
    int64_t longest = 0;
    for (size_t s = 0; s < stretches; ++s) longest = std::max(longest, begins[s + 1] - begins[s]);
    // Each chunk is a collective of the tensor axis, whose ranks may hold more and fewer tokens of
    // the vocabulary: their chunks are alike.
    const int64_t ranks = axis == nullptr ? 1 : axis->size();
    const int64_t chunk = LossRows(longest, context.model->config().vocabulary / ranks,
                                   weight.element_size(), request.rows, x.is_cuda());
    const bool is_whole = stretches == 1 && longest <= chunk;
    std::optional<HeadGradient> gradient;
    if (trains) gradient.emplace(context, head, is_whole);
    const at::Tensor memory = at::empty({chunk, weight.size(0)}, weight.options());
    at::Tensor losses = at::empty({rows.size(0)}, rows.options().dtype(at::kFloat));
    for (size_t s = 0; s < stretches; ++s) {
      if (axis != nullptr) axis->Wait(gather, s);
      for (int64_t at = begins[s]; at < begins[s + 1]; at += chunk) {
        const int64_t count = std::min(chunk, begins[s + 1] - at);
        const at::Tensor here = rows.narrow(0, at, count);
        const at::Tensor targets = request.targets.narrow(0, at, count);
        const at::Tensor logits = memory.narrow(0, 0, count);
        MultiplyInto(context, here, {head, -1}, logits);
        losses.narrow(0, at, count)
            .copy_(axis == nullptr
                       ? CrossEntropy(logits, targets, request.scale)
                       : SplitCrossEntropy(logits, targets, context.model->first_token(), *axis,
                                           request.scale));
        if (!trains) continue;
        InputGradientInto(context, logits, head, dx.narrow(0, at, count));
        gradient->Add(logits, here);
      }
      if (axis != nullptr && trains) axis->StartScatter(scatter, s);
    }
    if (!trains) return losses;
    const at::Tensor dweight = gradient->Finish();
    if (axis != nullptr) {
      axis->WaitAll(scatter);
      dx = scatter.held;
    }
    ctx->save_for_backward({dx, dweight});
    return losses;
  }

  // The gradients are those of the request's scale times the sum of the losses, whatever is handed
  // in.
  static variable_list backward(AutogradContext* ctx, const variable_list& /*gradients*/) {
    const Context context = SavedContext(ctx);
    const variable_list saved = ctx->get_saved_variables();
    // Not in the weight pass: the logits' gradient is gone, and this one is large.
    if (saved[1].defined()) DeliverNow(context, SavedPair(ctx).weight, saved[1]);
    return {saved[0], {}, {}, {}};
  }
};

}  // namespace

at::Tensor HeadLoss(const Context& context, const at::Tensor& x, int head,
                    const LossRequest& request) {
  return HeadLossFunction::apply(x, context, head, request);
}

}  // namespace operations
}  // namespace weft::train
