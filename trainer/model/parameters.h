// The parameters of a GPT: names, shapes, initial values, in the order in which a forward pass
// uses them. Everything else (buckets, optimizer, checkpoints, export) is built on this list.
//
// A rank may hold a part of the model: some of its layers (pipeline axis), and of a layer's
// matrices some rows or columns (tensor axis; Shoeybi et al., "Megatron-LM", 2019, section 3). The
// list then has the parameters of that part, with the shapes that this rank holds.
#ifndef WEFT_TRAINER_MODEL_PARAMETERS_H_
#define WEFT_TRAINER_MODEL_PARAMETERS_H_

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "trainer/config.h"

namespace weft::train {

// The halves of a serial block: attention with its norm, and the feed-forward part or the experts
// with theirs.
enum class BlockHalf : uint8_t { kAttention, kFeedForward };

// Consecutive layers of the model, with what stands before the first and behind the last of all.
struct ModelChunk {
  int64_t first_layer = 0;
  int64_t end_layer = 0;
  bool has_embedding = true;
  bool has_head = true;         // the last norm and the output projection
  bool begins_halfway = false;  // the first layer's attention is in the chunk before
  bool ends_halfway = false;    // the last layer's other half is in the chunk behind

  bool Has(int64_t layer, BlockHalf half) const {
    if (layer < first_layer || layer >= end_layer) return false;
    return half == BlockHalf::kAttention ? layer > first_layer || !begins_halfway
                                         : layer + 1 < end_layer || !ends_halfway;
  }
};

// What of the model a rank holds.
struct ModelPart {
  int tensor_rank = 0;
  int tensor_size = 1;
  int expert_rank = 0;  // among the ranks that share the experts: tensor x expert
  int expert_size = 1;
  std::vector<ModelChunk> chunks;  // in the order of a forward pass
};
// Layers [0, layers) over `depth` chunks: as even as they divide, the earlier ones one more.
ModelChunk ChunkOf(const ModelConfig& config, int depth, int index);
ModelPart WholeModel(const ModelConfig& config);

// Ranks of the same data replica that hold the same elements, whose gradients are added up.
enum class SharedBy : uint8_t {
  kNobody,
  kTensor,  // the tensor group: each rank sees some rows of the activations (sequence parallelism)
  kEnds,    // first and last stage: a tied embedding
};

struct ParameterSpec {
  std::string name;            // "block.3.attention.qkv.weight"
  std::vector<int64_t> shape;  // of what this rank holds
  // Forward order of this rank's units: embeddings, each of its blocks, the end of the model.
  int unit = 0;
  int uses = 1;  // gradients that one backward pass adds up (tied embedding: 2)
  bool is_matrix = false;
  double mean = 0;  // of the initial values
  double deviation = 0;

  // How it is cut over the tensor axis. Dimension 0 may consist of equal parts that are cut each by
  // itself: queries, keys and values.
  std::vector<int64_t> whole_shape;
  int split_dim = -1;  // -1: not at all
  int64_t split_parts = 1;
  int64_t split_begin = 0;  // this rank's first row or column within each part
  SharedBy shared = SharedBy::kNobody;
  bool is_expert = false;  // of an expert: other data replicas may hold others
  bool counts = true;      // in norms: one of the ranks that share it counts
  int chunk = 0;           // index into ModelPart::chunks

  int64_t elements() const;
  int64_t whole_elements() const;
};

// LibTorch's names of the types that a model computes in.
at::ScalarType TypeOf(Precision precision);
Precision PrecisionOf(at::ScalarType type);

// A matrix of a block, not a table of tokens or positions.
bool IsBlockMatrix(const ParameterSpec& spec);
// The embedding of tokens, or an output projection of its own.
bool IsTokenTable(const ParameterSpec& spec);
// FNV-1a: what a parameter's random draws begin with.
uint64_t HashName(const std::string& name);

// Elements of a parameter as a rank holds it and as the whole has them: `count` runs of `length`
// elements, consecutive in what the rank holds from `local` on, and in the whole, row-major, at
// `begin`, `begin + stride`, ...
struct ElementRuns {
  int64_t local = 0;
  int64_t begin = 0;
  int64_t length = 0;
  int64_t stride = 0;
  int64_t count = 1;
};
// Runs of elements [begin, begin + elements) of what this rank holds, in that order.
std::vector<ElementRuns> RunsOf(const ParameterSpec& spec, int64_t begin, int64_t elements);

// Parameters of the whole model.
std::vector<ParameterSpec> GptParameters(const ModelConfig& config);
// Parameters of the part; those of a chunk are neighbours.
std::vector<ParameterSpec> GptParameters(const ModelConfig& config, const ModelPart& part);
int64_t ElementCount(absl::Span<const ParameterSpec> parameters);

// Values of the whole parameter, whole_elements() of them. Depends on `seed` and the parameter's
// name alone, so that every layout begins alike.
void InitializeParameter(const ParameterSpec& spec, uint64_t seed, absl::Span<float> values);

// Floating-point operations of training on one token: 6 for each weight of a matrix product (2
// forward, 4 backward; the output projection counts, embeddings do not), and 12 * hidden * keys a
// block for attention. kCausal: the keys that a token meets in the mean, half of a sample, and
// fewer where a window holds. kFull: all of a sample, whatever mask or window, as PaLM (appendix B)
// and Megatron-LM count. Norms and activations are left out. The metrics mfu and mfu_full are these
// over the peak.
enum class AttentionFlops : uint8_t { kCausal, kFull };
double TrainingFlopsPerToken(const ModelConfig& config,
                             AttentionFlops attention = AttentionFlops::kCausal);

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_PARAMETERS_H_
