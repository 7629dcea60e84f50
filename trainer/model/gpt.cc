#include "trainer/model/gpt.h"

#include <torch/torch.h>

#include <algorithm>
#include <tuple>
#include <utility>

#include "base/status.h"
#include "trainer/model/feed_forward.h"
#include "trainer/model/operations.h"
#include "trainer/model/parameter_numbers.h"
#include "trainer/model/parameters.h"
#include "trainer/model/rotary.h"
#include "trainer/profile/work_time.h"

namespace weft::train {
namespace {

// Places of dropout: 0 the embeddings, then two a block.
int64_t AttentionPlace(int64_t layer) { return 1 + 2 * layer; }
int64_t FfnPlace(int64_t layer) { return 2 + 2 * layer; }

at::Tensor Sum(const at::Tensor& residual, const at::Tensor& branch) {
  const WorkScope scope(Work::kElementwise);
  return residual + branch;
}

}  // namespace

Gpt::Gpt(const ModelConfig& config, std::vector<at::Tensor> parameters)
    : Gpt(config, WholeModel(config), 0, GptParameters(config), std::move(parameters), {}) {}

Gpt::Gpt(const ModelConfig& config, const ModelPart& part, int chunk,
         const std::vector<ParameterSpec>& specs, std::vector<at::Tensor> parameters,
         const ModelAxes& axes)
    : config_(config),
      part_(part),
      chunk_(part.chunks[static_cast<size_t>(chunk)]),
      parameters_(std::move(parameters)),
      device_(parameters_.empty() ? at::Device(at::kCPU) : parameters_[0].device()),
      axis_(axes.tensor),
      context_(axes.context),
      experts_(axes.experts) {
  if (experts_ == nullptr && config_.HasExperts()) {
    experts_ = &own_experts_.emplace(&alone_, config_.experts, /*pieces=*/1);
  }
  WEFT_CHECK(specs.size() == parameters_.size(),
             specs.size() << " parameters, " << parameters_.size() << " tensors");
  WEFT_CHECK((axis_ != nullptr) == (part.tensor_size > 1), part.tensor_size << " tensor ranks");
  const ParameterNumbers numbers(specs);
  auto first = std::find_if(specs.begin(), specs.end(),
                            [chunk](const ParameterSpec& spec) { return spec.chunk == chunk; });
  if (first != specs.end()) first_unit_ = first->unit;
  for (int64_t layer = chunk_.first_layer; layer < chunk_.end_layer; ++layer) {
    Block& block = blocks_.emplace_back();
    static_cast<BlockParameters&>(block) =
        experts_ == nullptr
            ? numbers.OfBlock(layer, 0, 0)
            : numbers.OfBlock(layer, experts_->first_expert(), experts_->experts_here());
    block.layer = layer;
    block.has_attention = chunk_.Has(layer, BlockHalf::kAttention);
    block.has_ffn = chunk_.Has(layer, BlockHalf::kFeedForward);
  }
  token_table_ = numbers.Find("embedding.token");
  position_table_ = numbers.Find("embedding.position");
  if (chunk_.has_head) {
    norm_ = numbers.FindPair("norm");
    head_ = config_.tied ? token_table_ : numbers.Find("head.weight");
  }
  const int table = chunk_.has_head ? head_ : token_table_;
  if (table >= 0) first_token_ = specs[static_cast<size_t>(table)].split_begin;
  if (config_.position == PositionKind::kRotary) {
    std::tie(cosine_, sine_) = RotaryTables(config_);
    cosine_ = cosine_.to(device_);
    sine_ = sine_.to(device_);
  }
  if (context_ == nullptr) return;
  places_ = context_->PositionsOf(context_->rank(), config_.sequence).to(device_);
  if (!cosine_.defined()) return;
  cosine_ = cosine_.index_select(0, places_);
  sine_ = sine_.index_select(0, places_);
}

at::Tensor Gpt::RowsHeld(int64_t held) const {
  return axis_ == nullptr ? at::arange(held, at::TensorOptions(at::kLong).device(device_))
                          : axis_->RowsHeld(held * axis_->size()).to(device_);
}

at::Tensor Gpt::PlacesOf(const at::Tensor& rows, int64_t length) const {
  const at::Tensor places = rows.remainder(length);
  return context_ == nullptr ? places : places_.index_select(0, places);
}

at::Tensor Gpt::Drop(const at::Tensor& x, int64_t place, const ForwardOptions& options) const {
  if (!options.dropout || config_.dropout == 0) return x;
  // Tokens of the global batch that the rows of x are.
  at::Tensor rows = RowsHeld(x.size(0));
  if (context_ != nullptr) {
    const int64_t length = places_.size(0);
    rows = rows.div(length, "floor") * config_.sequence + PlacesOf(rows, length);
  }
  rows += options.dropout->first_row;
  return operations::Dropout(x, config_.dropout, options.dropout->key, place, rows);
}

at::Tensor Gpt::RunBlock(const Block& block, const at::Tensor& x, int64_t length,
                         const ForwardOptions& options) const {
  operations::Context context{this, options.sink, options.deferred};
  auto linear = [&](const at::Tensor& in, const ParameterPair& pair) {
    return operations::Linear(context, in, {pair.weight, pair.bias});
  };
  // Dropout comes between a branch and the residual sum; else the branch's last product adds up.
  const bool drops = options.dropout && config_.dropout > 0;
  auto attention = [&](const at::Tensor& in, const at::Tensor& before) {
    std::vector<operations::Region> regions;
    std::vector<at::Tensor> projected;
    for (const ParameterPair& pair : block.projections) projected.push_back(linear(in, pair));
    at::Tensor mixed = Mix(block, projected, length, options, regions);
    if (!drops) {
      return operations::DropResult(
          operations::LinearAdd(context, mixed, before, block.attention_out), regions);
    }
    at::Tensor out = operations::DropResult(linear(mixed, block.attention_out), regions);
    return Sum(before, Drop(out, AttentionPlace(block.layer), options));
  };
  auto ffn = [&](const at::Tensor& in, const at::Tensor& before) {
    if (block.router >= 0) return Sum(before, MixExperts(block, in, length, options));
    const at::Tensor added = drops ? at::Tensor() : before;
    at::Tensor out;
    if (RecomputeOf(block, options) != RecomputeKind::kSelective) {
      out = operations::FeedForward(context, in, added, {block.ffn_in, block.ffn_out});
    } else {
      std::vector<operations::Region> regions;
      at::Tensor inner = Activated(block, linear(in, block.ffn_in), options, regions);
      out = operations::DropResult(
          drops ? linear(inner, block.ffn_out)
                : operations::LinearAdd(context, inner, added, block.ffn_out),
          regions);
    }
    return drops ? Sum(before, Drop(out, FfnPlace(block.layer), options)) : out;
  };
  at::Tensor middle = x;
  if (block.has_attention) {
    auto [normed, residual] = operations::Norm(context, x, block.norm1);
    middle = attention(normed, residual);
    if (config_.block == BlockKind::kParallel) return ffn(normed, middle);
  }
  if (!block.has_ffn) return middle;
  auto [normed2, residual2] = operations::Norm(context, middle, block.norm2);
  return ffn(normed2, residual2);
}

// The same over a tensor axis: x has this rank's rows. One gather before the matrices whose outputs
// are cut, one reduce-scatter behind those whose inputs are; a parallel block has one of each in
// all.
at::Tensor Gpt::RunSplitBlock(const Block& block, const at::Tensor& x, int64_t length,
                              const ForwardOptions& options) const {
  if (config_.block == BlockKind::kSerial) return RunSplitSerial(block, x, length, options);
  operations::Context context{this, options.sink, options.deferred};
  auto [normed, residual] = operations::Norm(context, x, block.norm1);
  // Without dropout both branches are added up by one reduce-scatter.
  const bool drops = options.dropout && config_.dropout > 0;
  if (block.router < 0) {
    std::vector<ParameterPair> layers = block.projections;
    layers.push_back(block.ffn_in);
    std::vector<at::Tensor> columns = operations::GatherLinear(context, normed, layers);
    std::vector<operations::Region> mixing, activating;
    at::Tensor inner = Activated(block, columns.back(), options, activating);
    columns.pop_back();
    at::Tensor mixed = Mix(block, columns, length, options, mixing);
    if (!drops) {
      mixing.insert(mixing.end(), activating.begin(), activating.end());
      return Sum(residual, operations::DropResult(
                               operations::LinearScatter(context, {mixed, inner},
                                                         {block.attention_out, block.ffn_out}),
                               mixing));
    }
    at::Tensor attended = operations::DropResult(
        operations::LinearScatter(context, {mixed}, {block.attention_out}), mixing);
    at::Tensor fed = operations::DropResult(
        operations::LinearScatter(context, {inner}, {block.ffn_out}), activating);
    return Sum(Sum(residual, Drop(attended, AttentionPlace(block.layer), options)),
               Drop(fed, FfnPlace(block.layer), options));
  }
  const at::Tensor middle = AttendSplit(block, normed, residual, length, options);
  return Sum(middle, MixExperts(block, normed, length, options));
}

// The sum of `residual` and the attention of a block's normed rows.
at::Tensor Gpt::AttendSplit(const Block& block, const at::Tensor& normed,
                            const at::Tensor& residual, int64_t length,
                            const ForwardOptions& options) const {
  operations::Context context{this, options.sink, options.deferred};
  std::vector<operations::Region> mixing;
  at::Tensor mixed = Mix(block, operations::GatherLinear(context, normed, block.projections),
                         length, options, mixing);
  at::Tensor attended = operations::DropResult(
      operations::LinearScatter(context, {mixed}, {block.attention_out}), mixing);
  return Sum(residual, Drop(attended, AttentionPlace(block.layer), options));
}

at::Tensor Gpt::RunSplitSerial(const Block& block, const at::Tensor& x, int64_t length,
                               const ForwardOptions& options) const {
  operations::Context context{this, options.sink, options.deferred};
  at::Tensor middle = x;
  if (block.has_attention) {
    auto [normed, residual] = operations::Norm(context, x, block.norm1);
    middle = AttendSplit(block, normed, residual, length, options);
  }
  if (!block.has_ffn) return middle;
  auto [normed2, residual2] = operations::Norm(context, middle, block.norm2);
  if (block.router >= 0) return Sum(residual2, MixExperts(block, normed2, length, options));
  std::vector<operations::Region> activating;
  at::Tensor inner = Activated(block, operations::GatherLinear(context, normed2, {block.ffn_in})[0],
                               options, activating);
  at::Tensor fed = operations::DropResult(
      operations::LinearScatter(context, {inner}, {block.ffn_out}), activating);
  return Sum(residual2, Drop(fed, FfnPlace(block.layer), options));
}

// The mixture of experts, on the rows that this rank holds.
at::Tensor Gpt::MixExperts(const Block& block, const at::Tensor& normed, int64_t length,
                           const ForwardOptions& options) const {
  operations::Context context{this, options.sink, options.deferred};
  const operations::Routing routing =
      operations::Route(context, normed, block.router, length, options.token_scale, options.router);
  return Drop(operations::Experts(context, normed, routing, block.experts), FfnPlace(block.layer),
              options);
}

at::Tensor Gpt::Activate(const at::Tensor& inner) const {
  return config_.IsGated() ? operations::Swiglu(inner) : operations::Gelu(inner);
}

RecomputeKind Gpt::RecomputeOf(const Block& block, const ForwardOptions& options) const {
  if (options.sink == nullptr || options.recompute == nullptr) return RecomputeKind::kNone;
  return (*options.recompute)[static_cast<size_t>(block.layer)];
}

at::Tensor Gpt::Mix(const Block& block, const std::vector<at::Tensor>& projections, int64_t length,
                    const ForwardOptions& options, std::vector<operations::Region>& regions) const {
  operations::Context context{this, options.sink, options.deferred};
  if (RecomputeOf(block, options) != RecomputeKind::kSelective) {
    return operations::Attention(context, projections, length, block.layer);
  }
  // Rotary positions change their argument in place: each run gets a copy.
  const bool copies = config_.position == PositionKind::kRotary;
  auto run = [context, length, copies, layer = block.layer](std::vector<at::Tensor> given) {
    if (copies) {
      for (at::Tensor& tensor : given) tensor = tensor.clone();
    }
    return operations::Attention(context, given, length, layer);
  };
  return operations::Recompute(projections, run, &regions.emplace_back());
}

at::Tensor Gpt::Activated(const Block& block, const at::Tensor& inner,
                          const ForwardOptions& options,
                          std::vector<operations::Region>& regions) const {
  if (RecomputeOf(block, options) != RecomputeKind::kSelective) return Activate(inner);
  return operations::Recompute(
      {inner}, [this](const std::vector<at::Tensor>& given) { return Activate(given[0]); },
      &regions.emplace_back());
}

at::Tensor Gpt::RunOrRecompute(const Block& block, const at::Tensor& x, int64_t length,
                               const ForwardOptions& options) const {
  auto run = [this, &block, length, options](const std::vector<at::Tensor>& given) {
    return axis_ == nullptr ? RunBlock(block, given[0], length, options)
                            : RunSplitBlock(block, given[0], length, options);
  };
  if (RecomputeOf(block, options) != RecomputeKind::kFull) return run({x});
  return operations::Recompute({x}, run);
}

at::Tensor Gpt::Embed(const at::Tensor& tokens, const ForwardOptions& options) const {
  operations::Context context{this, options.sink, options.deferred};
  at::Tensor x = axis_ == nullptr
                     ? operations::Embedding(context, tokens, token_table_, position_table_)
                     : operations::SplitEmbedding(context, tokens, token_table_, position_table_);
  return Drop(x, 0, options);
}

at::Tensor Gpt::Head(const at::Tensor& x, int64_t length, const ForwardOptions& options) const {
  operations::Context context{this, options.sink, options.deferred};
  at::Tensor last = x;
  if (options.last_only) {
    WEFT_CHECK(axis_ == nullptr, "last_only needs all rows");
    last = x.view({-1, length, config_.hidden}).select(1, -1).contiguous();
  }
  at::Tensor normed = operations::Norm(context, last, norm_).first;
  if (options.loss) return operations::HeadLoss(context, normed, head_, *options.loss);
  if (axis_ == nullptr) return operations::Linear(context, normed, {head_, -1});
  return operations::GatherLinear(context, normed, {{head_, -1}})[0];
}

at::Tensor Gpt::Run(const at::Tensor& input, int64_t length, const ForwardOptions& options) {
  WEFT_CHECK(context_ == nullptr ? length <= config_.sequence : length == places_.size(0),
             "samples of " << length << " tokens");
  at::AutoGradMode grad_mode(options.sink != nullptr);
  int unit = first_unit_;
  const bool goes_back = options.sink != nullptr && options.before_backward != nullptr;
  auto in_unit = [&](const at::Tensor& in, bool is_embedding, auto body) {
    const int here = unit++;
    const bool hooks = goes_back && !is_embedding;
    if (options.before_unit) options.before_unit(here);
    at::Tensor out = body(
        hooks ? operations::OnBackward(in, [here, after = options.after_backward] { after(here); })
              : in);
    if (hooks) {
      out = operations::OnBackward(out, [here, before = options.before_backward] { before(here); });
    }
    if (options.after_unit) options.after_unit(here);
    return out;
  };
  at::Tensor x = input;
  if (chunk_.has_embedding) {
    x = in_unit(x, true, [&](const at::Tensor& in) { return Embed(in, options); });
  }
  for (const Block& block : blocks_) {
    x = in_unit(x, false,
                [&](const at::Tensor& in) { return RunOrRecompute(block, in, length, options); });
  }
  if (!chunk_.has_head) return x;
  return in_unit(x, false, [&](const at::Tensor& in) { return Head(in, length, options); });
}

Pass Gpt::Forward(const at::Tensor& tokens, const ForwardOptions& options) {
  WEFT_CHECK(tokens.dim() == 2, "tokens " << tokens.sizes());
  return {Run(tokens, tokens.size(1), options)};
}

void Gpt::Backward(const Pass& pass) {
  torch::autograd::backward({pass.logits}, {pass.logits.detach()});
}

}  // namespace weft::train
