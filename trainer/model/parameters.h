// The parameters of a GPT: names, shapes, initial values, in the order in which a forward pass
// uses them. Everything else (buckets, optimizer, checkpoints, export) is built on this list.
#ifndef WEFT_TRAINER_MODEL_PARAMETERS_H_
#define WEFT_TRAINER_MODEL_PARAMETERS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "trainer/config.h"

namespace weft {

struct ParameterSpec {
  std::string name;  // "block.3.attention.qkv.weight"
  std::vector<int64_t> shape;
  // Forward order: 0 the embeddings, 1..layers the blocks, layers + 1 the end.
  int unit = 0;
  int uses = 1;  // gradients that one backward pass adds up (tied embedding: 2)
  bool is_matrix = false;
  double mean = 0;  // of the initial values
  double deviation = 0;

  int64_t elements() const;
};

std::vector<ParameterSpec> GptParameters(const ModelConfig& config);
int UnitCount(const ModelConfig& config);
int64_t ElementCount(absl::Span<const ParameterSpec> parameters);

// Depends on `seed` and the parameter's name alone, so that every number of ranks begins alike.
void InitializeParameter(const ParameterSpec& spec, uint64_t seed, absl::Span<float> values);

// Floating-point operations of training on one token: 6 for each weight of a matrix product (2
// forward, 4 backward; the output projection counts, embeddings do not), and 6 * hidden * sequence
// a block for causal attention, which is half of full attention. MegaScale and PaLM count so; norms
// and activations are left out. The metric mfu is this over the measured peak.
double TrainingFlopsPerToken(const ModelConfig& config);

}  // namespace weft

#endif  // WEFT_TRAINER_MODEL_PARAMETERS_H_
