#include "trainer/forecast/activation_memory.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "trainer/model/context_axis.h"
#include "trainer/model/device_attention.h"
#include "trainer/model/gpt.h"
#include "trainer/model/parameters.h"

namespace weft::train {
namespace {

// Bytes of one micro-batch's tensors in one block or chunk.
struct BlockBytes {
  int64_t kept = 0;           // from the forward pass to the backward pass
  int64_t until_weights = 0;  // from the backward pass to the weight pass, where there is one
  int64_t transient = 0;      // the most that the backward pass makes beside `kept`
  int64_t loss = 0;           // the most that the loss makes beside `kept`
};

// Rows of hidden activations in a rank's exchange with the experts of a layer.
struct ExpertRows {
  int64_t sent = 0, received = 0;
};
ExpertRows RowsOfExperts(const TrainConfig& config, const StepPlan& plan, RoutingLoad load) {
  const ModelConfig& model = config.model;
  const int64_t sharers = int64_t{plan.sizes.tensor} * plan.sizes.expert;
  const int64_t tokens = plan.micro_rows * plan.TokensHeld(model.sequence) / plan.sizes.tensor;
  const double choices = static_cast<double>(tokens * model.top_k);
  const double places =
      model.capacity_factor > 0 ? choices * model.capacity_factor : tokens * sharers * model.top_k;
  const double even = std::min(choices, places);
  // A token chooses an expert once.
  const double worst = static_cast<double>(
      tokens * sharers * std::min(model.top_k, model.experts / std::max<int64_t>(1, sharers)));
  const double received = load == RoutingLoad::kEven ? even : std::min(worst, places);
  return {static_cast<int64_t>(even), static_cast<int64_t>(received)};
}

// What model/experts.cc and model/router.cc keep and make in place of a dense feed-forward part.
struct ExpertBytes {
  int64_t kept = 0, transient = 0, until_weights = 0;
};
ExpertBytes BytesOfExperts(const TrainConfig& config, const StepPlan& plan, RoutingLoad load) {
  const ModelConfig& model = config.model;
  const int64_t width = SizeOf(config.precision);
  const int64_t tokens = plan.micro_rows * plan.TokensHeld(model.sequence) / plan.sizes.tensor;
  const int64_t here = model.experts / (int64_t{plan.sizes.tensor} * plan.sizes.expert);
  const int64_t inner = (model.IsGated() ? 2 : 1) * model.ffn;
  const auto [sent, received] = RowsOfExperts(config, plan, load);
  ExpertBytes bytes;
  // Probabilities and the load of experts; of each choice its number, whether it is kept, its
  // weight and its place.
  const int64_t routing =
      tokens * (2 * model.experts * 4 + 8) + tokens * model.top_k * (8 + 1 + 4 + 8);
  bytes.kept = received * (model.hidden + inner) * width + sent * model.hidden * width + routing;
  // Gradients of the rows: in fp32 as they come, weighted, and as they return; of those here on
  // both sides of the experts and inside. Then the sums by token, in fp32.
  const int64_t one = received / here * (inner + model.ffn + model.hidden) * width;
  const int64_t sums = (tokens + (width < 4 ? sent : 0)) * model.hidden * 4;
  bytes.transient = sent * model.hidden * (4 + 2 * width) +
                    received * (2 * model.hidden + inner) * width + std::max(one, sums);
  // Inputs of the experts' products, and gradients of their outputs.
  bytes.until_weights = received * (2 * model.hidden + model.ffn + inner) * width;
  return bytes;
}

// Heads of a rank whose tokens and heads are exchanged for attention (Ulysses).
struct ExchangedHeads {
  int64_t queries = 0;           // of each key-value head
  int64_t kv_heads = 0;          // in attention, repeats among them
  int64_t repeats = 1;           // of each key-value head
  int64_t largest_kv_heads = 0;  // of the largest piece
};
bool ExchangesHeads(const TrainConfig& config, const StepPlan& plan) {
  return plan.sizes.context > 1 && config.context_method == ContextMethod::kUlysses;
}
ExchangedHeads HeadsOf(const TrainConfig& config, const StepPlan& plan) {
  const int64_t heads = config.model.heads / plan.sizes.tensor;
  const int64_t held = std::max<int64_t>(1, config.model.KvHeads() / plan.sizes.tensor);
  ExchangedHeads result;
  result.repeats = RepeatsOfHeads(heads, held, plan.sizes.context);
  result.queries = heads / (held * result.repeats);
  result.kv_heads = held * result.repeats / plan.sizes.context;
  const std::vector<int64_t> edges = HeadEdges(result.kv_heads, config.overlap.context);
  for (size_t i = 0; i + 1 < edges.size(); ++i) {
    result.largest_kv_heads = std::max(result.largest_kv_heads, edges[i + 1] - edges[i]);
  }
  return result;
}

// What the exchanges of heads have beside a block's projections.
struct ExchangeBytes {
  int64_t queries_keys_values = 0;  // of all tokens of some heads, kept in place of the projections
  int64_t transient = 0;            // the most in the backward pass
};
ExchangeBytes BytesOfExchange(const TrainConfig& config, const StepPlan& plan) {
  if (!ExchangesHeads(config, plan)) return {};
  const ExchangedHeads heads = HeadsOf(config, plan);
  const int64_t head = plan.micro_rows * config.model.sequence *
                       (config.model.hidden / config.model.heads) * SizeOf(config.precision);
  const int64_t keys_values = 2 * heads.kv_heads * head;
  ExchangeBytes bytes;
  bytes.queries_keys_values = heads.kv_heads * heads.queries * head + keys_values;
  // At the end the gradients of every piece are on their way, at both ends of it; those of heads
  // that are repeated are then put together.
  bytes.transient = 2 * bytes.queries_keys_values + (heads.repeats > 1 ? keys_values : 0);
  return bytes;
}

// What a GPU's attention makes of scores in the backward pass, where they are stored: at most five
// tensors in fp32 of the size of a tile, as model/device_attention.cc has them.
int64_t BytesOfScores(const TrainConfig& config, const StepPlan& plan, int64_t window) {
  const ModelConfig& model = config.model;
  if (config.device != DeviceKind::kCuda ||
      !StoresScores(TypeOf(config.precision), model.hidden / model.heads, window > 0)) {
    return 0;
  }
  int64_t heads = model.heads / plan.sizes.tensor, tokens = plan.TokensHeld(model.sequence);
  if (ExchangesHeads(config, plan)) {
    const ExchangedHeads exchanged = HeadsOf(config, plan);
    heads = exchanged.largest_kv_heads * exchanged.queries;
    tokens = model.sequence;
  }
  const int64_t edge = window > 0 ? std::max<int64_t>(window, 64) : tokens;  // attention_tiles.h
  return 5 * 4 * plan.micro_rows * heads * std::min(tokens, edge) * std::min(tokens, 2 * edge);
}

// One micro-batch in one block, or in the half of a block that the flags name. `window`: of the
// block's attention; 0: none.
BlockBytes BytesOfBlock(const TrainConfig& config, const StepPlan& plan, RecomputeKind recompute,
                        RoutingLoad load, bool has_attention, bool has_ffn, int64_t window) {
  const ModelConfig& model = config.model;
  const int64_t width = SizeOf(config.precision);
  const int64_t rows = plan.micro_rows * plan.TokensHeld(model.sequence);
  const int64_t parts = plan.sizes.tensor;
  const int64_t gates = model.IsGated() ? 2 : 1;
  const int64_t norms = has_attention && has_ffn && model.block == BlockKind::kSerial ? 2 : 1;
  const int64_t row = rows * width / parts;  // of one column of all ranks' activations
  // Inputs of norms and of the products behind them; their statistics, fp32.
  const int64_t by_norms = 2 * norms * model.hidden * row + norms * rows / parts * 8;
  const int64_t qkv = has_attention ? (model.hidden + 2 * model.KvHidden()) * row : 0;
  const ExchangeBytes heads = has_attention ? BytesOfExchange(config, plan) : ExchangeBytes{};
  const int64_t kept_qkv = heads.queries_keys_values > 0 ? heads.queries_keys_values : qkv;
  const int64_t mixed = has_attention ? model.hidden * row + rows * model.heads / parts * 4 : 0;
  const bool is_dense = has_ffn && !model.HasExperts();
  const int64_t inner = is_dense ? gates * model.ffn * row : 0;
  const int64_t activated = is_dense ? model.ffn * row : 0;
  BlockBytes bytes;
  bytes.kept = by_norms + kept_qkv + mixed + inner + activated;
  // Other ranks' rows of what the products by outputs read.
  const bool keeps_gathered = parts > 1 && config.tensor_gathered == GatheredRows::kKeep;
  const int64_t gathers =
      model.block == BlockKind::kParallel ? 1 : int64_t{has_attention} + int64_t{is_dense};
  if (keeps_gathered) bytes.kept += gathers * model.hidden * (rows * width - row);
  // The second half of the backward pass: gradients of the residual stream, the nonlinearity's
  // input and output. A tensor axis gathers rows and adds them up.
  const int64_t exchanged = parts > 1 ? (keeps_gathered ? 1 : 2) * rows * width * model.hidden : 0;
  bytes.transient = 2 * model.hidden * row + (has_ffn ? inner : qkv) + exchanged;
  const int64_t outputs = has_attention && has_ffn ? 2 : 1;  // into the residual stream
  bytes.until_weights = norms * model.hidden * row + mixed + activated +  // the products' inputs
                        qkv + outputs * model.hidden * row + inner;  // their outputs' gradients
  // Other ranks' rows of the products' inputs, and as often of their outputs' gradients.
  if (parts > 1) bytes.until_weights += 2 * gathers * model.hidden * (rows * width - row);
  if (has_ffn && model.HasExperts()) {
    const ExpertBytes experts = BytesOfExperts(config, plan, load);
    bytes.kept += experts.kept;
    bytes.transient = 2 * model.hidden * row + experts.transient;
    bytes.until_weights += experts.until_weights;
  }
  const int64_t scores = has_attention ? BytesOfScores(config, plan, window) : 0;
  if (scores + heads.transient > 0) {
    bytes.transient = std::max(bytes.transient, 2 * model.hidden * row + qkv + scores +
                                                    std::max(exchanged, heads.transient));
  }
  if (recompute == RecomputeKind::kSelective) {
    // The projections are kept, of which attention makes the rest again.
    bytes.kept += qkv - kept_qkv - mixed - activated;
    bytes.transient += heads.queries_keys_values + mixed + activated;
  } else if (recompute == RecomputeKind::kFull) {
    bytes.transient += bytes.kept - model.hidden * row;
    bytes.kept = model.hidden * row;
  }
  return bytes;
}

// Bytes of one micro-batch's tensors in a chunk.
BlockBytes BytesOfChunk(const TrainConfig& config, const StepPlan& plan, const ModelChunk& chunk,
                        RoutingLoad load) {
  const ModelConfig& model = config.model;
  const int64_t width = SizeOf(config.precision);
  const int64_t rows = plan.micro_rows * plan.TokensHeld(model.sequence);
  const int64_t residual = rows * width * model.hidden / plan.sizes.tensor;
  BlockBytes bytes;
  for (int64_t layer = chunk.first_layer; layer < chunk.end_layer; ++layer) {
    const BlockBytes block =
        BytesOfBlock(config, plan, config.recompute[static_cast<size_t>(layer)], load,
                     chunk.Has(layer, BlockHalf::kAttention),
                     chunk.Has(layer, BlockHalf::kFeedForward), model.WindowOf(layer));
    bytes.kept += block.kept;
    bytes.until_weights += block.until_weights;
    bytes.transient = std::max(bytes.transient, block.transient);
  }
  bytes.kept += residual;  // the last block's output
  // The gradient of the positions' table, in fp32.
  if (plan.PutsAllOff(config) && chunk.has_embedding && model.position == PositionKind::kLearned) {
    bytes.until_weights += model.sequence * model.hidden * 4;
  }
  if (!chunk.has_head) return bytes;
  // The norm's output is read by the loss alone, and its gradient is there from then on.
  bytes.kept += residual;
  const int64_t vocabulary = model.vocabulary / plan.sizes.tensor;
  const int64_t at_once =
      LossRows(rows, vocabulary, width, config.loss_rows, config.device == DeviceKind::kCuda);
  // The gradient of the output projection where it cannot be added up in its place.
  const bool adds_up = at_once < rows;
  const bool is_apart =
      config.zero_stage >= 2 || (adds_up && width < 4 && !plan.ReducesInFp32(config));
  const int64_t gathered = plan.sizes.tensor > 1 ? 2 * rows * width * model.hidden : 0;
  bytes.loss = residual + at_once * width * vocabulary + gathered +
               (is_apart ? vocabulary * model.hidden * (adds_up ? 4 : width) : 0);
  return bytes;
}

}  // namespace

Bytes ActivationMemory(const TrainConfig& config, const StepPlan& plan, const ModelPart& part,
                       absl::Span<const topology::PipelinePass> passes, RoutingLoad load) {
  std::vector<BlockBytes> chunks;
  for (const ModelChunk& chunk : part.chunks) {
    chunks.push_back(BytesOfChunk(config, plan, chunk, load));
  }
  const bool splits = SplitsBackward(plan.pipeline.kind);
  int64_t held = 0, most = 0;
  for (const topology::PipelinePass& pass : passes) {
    const BlockBytes& chunk = chunks[static_cast<size_t>(pass.chunk)];
    switch (pass.kind) {
      case topology::PassKind::kForward:
        held += chunk.kept;
        most = std::max(most, held + chunk.loss);
        break;
      case topology::PassKind::kBackward:
        most = std::max(most, held + chunk.transient);
        held -= chunk.kept;
        if (splits) held += chunk.until_weights;
        most = std::max(most, held);
        break;
      case topology::PassKind::kWeight:
        held -= chunk.until_weights;
        break;
    }
  }
  // Messages that are on their way: receives that are posted ahead, and sends.
  const int64_t width = SizeOf(config.precision);
  const int64_t message = plan.micro_rows * plan.TokensHeld(config.model.sequence) * width *
                          config.model.hidden / plan.sizes.tensor;
  return Bytes(most + (plan.pipeline.stages > 1 ? 2 * message : 0));
}

}  // namespace weft::train
