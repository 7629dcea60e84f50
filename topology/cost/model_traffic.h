// What a transformer's training step sends on each axis, from the shape of the model: Megatron-LM's
// layout of work (tensor and sequence parallelism around each block, 1F1B pipelines, ZeRO-style
// data parallelism, ring attention over the context axis, experts by all-to-all), with MegaScale's
// overlap (arXiv 2402.15627, section 3.2).
//
//   b micro-batch, s sequence, h hidden, e bytes of an element; t, c, x, d, p sizes of the tensor,
//   context, expert, data and pipeline axes; m micro-batches of a step, v chunks of a pipeline
//   stage, L = layers / p of a stage, P parameters of the largest stage of one rank.
//
//   tensor      2 L m (1 with a parallel block) all-gathers and as many reduce-scatters each of
//               forward and backward, of b s h e / c
//   pipeline    v m messages each way of b s h e / (t c), each way to the neighbouring stage;
//               exposed are the p - 1 of warm-up and of cool-down
//   data        reduce-scatter of P e and all-gather of P e (ZeRO 1, 2), in v chunks: exposed is
//               the last chunk of the one, of the other nothing, as its first is prefetched:
//               1/(2 v) in all. ZeRO 0: all-reduce. ZeRO 3: two all-gathers.
//   context     per layer and micro-batch all-gather and reduce-scatter of keys and values
//   expert      2 all-to-alls of b s top_k h e / (t c) a layer, forward and backward
#ifndef WEFT_TOPOLOGY_COST_MODEL_TRAFFIC_H_
#define WEFT_TOPOLOGY_COST_MODEL_TRAFFIC_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "topology/cost/job.h"
#include "topology/job/mesh.h"
#include "topology/job/model_shape.h"

namespace weft::topology {

// A model and how it is trained.
struct TrainingSetup {
  ModelShape model;
  int64_t micro_batch = 1;     // sequences
  int64_t global_batch = 0;    // sequences of a step
  int64_t element_bytes = 2;   // of activations, gathered parameters
  int64_t gradient_bytes = 2;  // of an element of the reduce-scatter
  int zero = 2;                // stage, 0 to 3
  int interleave = 1;          // v
  bool sequence_parallel = true;
  // What runs under computation. Off: all of it is exposed.
  bool overlap_data = true;
  bool overlap_pipeline = true;
  bool overlap_tensor = false;
  bool overlap_context = true;
};

// Parameters of the stage and rank that has the most, experts apart.
struct ParameterCount {
  int64_t dense = 0;   // of one rank of the largest stage
  int64_t expert = 0;  // likewise, those of its experts
  int64_t total = 0;   // of the model
};
ParameterCount CountParameters(const ModelShape& model, const Mesh& mesh);

// InvalidArgument names the key ("layers") that does not fit the layout, and what would.
absl::StatusOr<std::vector<Traffic>> TrafficOf(const TrainingSetup& setup, const Mesh& mesh);

// A preset (model_shape.h) with its batch and its chunks of a stage.
absl::StatusOr<TrainingSetup> NamedSetup(absl::string_view name);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_COST_MODEL_TRAFFIC_H_
