// The shape of a transformer: what decides how many parameters it has, and what a token of it
// computes and sends. The engine builds it, planner and simulator reckon with it.
//
// Values; thread-safe as such.
#ifndef WEFT_TOPOLOGY_JOB_MODEL_SHAPE_H_
#define WEFT_TOPOLOGY_JOB_MODEL_SHAPE_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::topology {

enum class BlockKind { kSerial, kParallel };  // kParallel: x + attention(norm(x)) + ffn(norm(x))
enum class PositionKind { kLearned, kRotary };
enum class ActivationKind { kGelu, kSwiglu };
enum class NormKind { kLayerNorm, kRmsNorm };

struct ModelShape {
  int64_t layers = 0;
  int64_t hidden = 0;      // width of the residual stream
  int64_t heads = 0;       // of attention
  int64_t ffn = 0;         // inner width of the feed-forward part; 0: 4 hidden
  int64_t kv_hidden = 0;   // width of all keys, and of all values; 0: hidden
  int64_t vocabulary = 0;  // tokens that there are
  int64_t sequence = 0;    // tokens of a sample
  int64_t window = 0;      // newest tokens that a token attends to, itself among them; 0: all
  int64_t experts = 0;     // feed-forward parts of a layer that has several; 0 or 1: dense
  int64_t top_k = 2;       // experts of a token
  int64_t moe_every = 1;   // one layer with experts in so many
  BlockKind block = BlockKind::kSerial;
  PositionKind position = PositionKind::kLearned;
  ActivationKind activation = ActivationKind::kGelu;
  NormKind norm = NormKind::kLayerNorm;
  bool tied = true;  // the output projection is the token embedding
  bool bias = true;  // in linear layers and LayerNorm

  bool HasExperts() const { return experts > 1; }
  // Grouped-query attention (Ainslie et al., 2023) has fewer heads of keys and values than of
  // queries.
  int64_t KvHidden() const { return kv_hidden > 0 ? kv_hidden : hidden; }
  int64_t KvHeads() const { return KvHidden() * heads / hidden; }
  // Whether the feed-forward part has three matrices, not two.
  bool IsGated() const { return activation == ActivationKind::kSwiglu; }
  // Elements of the matrices of one layer's attention, and of one feed-forward part.
  int64_t AttentionElements() const;
  int64_t FeedForwardElements() const;
};

struct ModelPreset {
  const char* name;
  ModelShape shape;
  // How it is trained where its source says so: sequences of a step, and chunks of a pipeline
  // stage.
  int64_t global_batch = 0;
  int64_t interleave = 1;
};

// gpt-13b; gpt-175b and gpt-530b as MegaScale trains them (NSDI'24, table 1); gpt2-124m (Radford et
// al., 2019); llama-160m (JackFram's, of Miao et al., 2023).
absl::Span<const ModelPreset> ModelPresets();
// kInvalidArgument: there is none; says which there are.
absl::StatusOr<ModelPreset> FindModel(absl::string_view name);

// An architecture without its sizes.
struct ModelStyle {
  const char* name;
  ModelShape shape;  // only block, position, activation, norm, tied, bias, experts and top_k count
};
// gpt2 (Radford et al., 2019), llama (Touvron et al., 2023), mixtral (Jiang et al., 2024), neox
// (Black et al., 2022). kInvalidArgument: there is none of that name; says which there are.
absl::StatusOr<ModelStyle> FindStyle(absl::string_view name);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_MODEL_SHAPE_H_
