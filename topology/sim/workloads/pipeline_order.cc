#include "topology/sim/workloads/pipeline_order.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// The k-th forward (or backward) pass of a chunk on every stage.
Pass Kth(const PipelineShape& shape, int stage, int k, bool backward) {
  const int p = shape.stages, v = shape.chunks;
  const int in_group = k % (p * v);
  Pass pass{.backward = backward, .stage = static_cast<int16_t>(stage)};
  if (v == 1) {
    pass.micro_batch = k;
    return pass;
  }
  const int chunk = in_group / p;
  pass.chunk = static_cast<int16_t>(backward ? v - 1 - chunk : chunk);
  pass.micro_batch = k / (p * v) * p + in_group % p;
  return pass;
}

int WarmUp(const PipelineShape& shape, int stage) {
  const int behind = shape.stages - 1 - stage;
  const int wanted = shape.chunks == 1 ? behind : 2 * behind + (shape.chunks - 1) * shape.stages;
  return std::min(wanted, shape.micro_batches * shape.chunks);
}

}  // namespace

absl::StatusOr<std::vector<Pass>> StageOrder(const PipelineShape& shape, int stage) {
  if (shape.stages < 1 || shape.stages > 4096 || shape.chunks < 1 || shape.chunks > 1024 ||
      shape.micro_batches < 1 || shape.micro_batches > 1 << 20 ||
      int64_t{shape.chunks} * shape.micro_batches > 1 << 24) {
    return absl::InvalidArgumentError(absl::StrCat("a pipeline of ", shape.stages, " stages with ",
                                                   shape.chunks, " chunks each and ",
                                                   shape.micro_batches, " micro-batches"));
  }
  if (shape.chunks > 1 && shape.micro_batches % shape.stages != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape.micro_batches, " micro-batches: the interleaved schedule needs a ",
                     "multiple of the ", shape.stages, " stages"));
  }
  const int total = shape.micro_batches * shape.chunks;
  const int warm_up = WarmUp(shape, stage);
  std::vector<Pass> order;
  order.reserve(static_cast<size_t>(total) * 2);
  for (int k = 0; k < warm_up; ++k) order.push_back(Kth(shape, stage, k, false));
  for (int k = 0; k < total; ++k) {
    if (k + warm_up < total) order.push_back(Kth(shape, stage, k + warm_up, false));
    order.push_back(Kth(shape, stage, k, true));
  }
  return order;
}

bool PassBefore(const PipelineShape& shape, const Pass& pass, Pass& before) {
  before = pass;
  const int last_stage = shape.stages - 1, last_chunk = shape.chunks - 1;
  const int step = pass.backward ? 1 : -1;
  const int stage = pass.stage + step;
  if (stage >= 0 && stage <= last_stage) {
    before.stage = static_cast<int16_t>(stage);
    return true;
  }
  const int chunk = pass.chunk + step;
  if (chunk >= 0 && chunk <= last_chunk) {
    before.chunk = static_cast<int16_t>(chunk);
    before.stage = static_cast<int16_t>(pass.backward ? 0 : last_stage);
    return true;
  }
  before.backward = false;
  return pass.backward;
}

absl::StatusOr<std::vector<Pass>> PipelineOrder(const PipelineShape& shape) {
  std::vector<std::vector<Pass>> orders;
  for (int stage = 0; stage < std::max(1, shape.stages); ++stage) {
    WEFT_ASSIGN_OR_RETURN(std::vector<Pass> order, StageOrder(shape, stage));
    orders.push_back(std::move(order));
  }
  auto number = [&](const Pass& pass) {
    size_t index = static_cast<size_t>(pass.stage) * static_cast<size_t>(shape.chunks) +
                   static_cast<size_t>(pass.chunk);
    index =
        index * static_cast<size_t>(shape.micro_batches) + static_cast<size_t>(pass.micro_batch);
    return index * 2 + (pass.backward ? 1 : 0);
  };
  size_t total = 0;
  for (const auto& order : orders) total += order.size();
  std::vector<bool> done(total);
  std::vector<size_t> next(orders.size());
  std::vector<Pass> all;
  while (all.size() < total) {
    const size_t before = all.size();
    for (size_t stage = 0; stage < orders.size(); ++stage) {
      // One pass a stage and round, so that stages advance side by side.
      if (next[stage] == orders[stage].size()) continue;
      const Pass& pass = orders[stage][next[stage]];
      Pass needed;
      if (PassBefore(shape, pass, needed) && !done[number(needed)]) continue;
      done[number(pass)] = true;
      all.push_back(pass);
      ++next[stage];
    }
    WEFT_CHECK(all.size() > before, "the pipeline's schedule deadlocks after " << before);
  }
  return all;
}

}  // namespace weft::topology
