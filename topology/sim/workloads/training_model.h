// What a training step computes and how much it has to communicate: the arithmetic behind
// training_step.h.
//
// Time of computation. A pass of a micro-batch through a chunk takes its FLOPs / (tensor * context
// * peak * efficiency). FLOPs of a token forward: a layer 8 h^2 (attention) + 16 h^2 * top_k (FFN
// of 4h) + 2 s h (scores, causal: half of 4 s h), and 2 h V for the logits in the last chunk;
// backward twice that, and a forward more with `recompute`. `efficiency` is that of the kernels
// with the communication inside a host; bubbles and what the network exposes come on top.
#ifndef WEFT_TOPOLOGY_SIM_WORKLOADS_TRAINING_MODEL_H_
#define WEFT_TOPOLOGY_SIM_WORKLOADS_TRAINING_MODEL_H_

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "topology/job/mesh.h"
#include "topology/job/model_shape.h"
#include "topology/job/pipeline_schedule.h"

namespace weft::topology {

struct TrainingStep {
  ModelShape model;
  // The data axis counts the replicas that hold the same experts: all replicas are data x expert.
  Mesh mesh;
  PipelineScheduleKind schedule = PipelineScheduleKind::k1F1B;
  int chunks = 1;              // of layers that a stage holds
  int micro_batches = 1;       // of a replica
  int micro_batch = 1;         // b, sequences
  double peak_flops = 312e12;  // of a GPU (A100, bf16)
  double efficiency = 0.62;
  bool recompute = false;
  int element = 2;               // bytes of a parameter, gradient, activation on the wire
  int buckets = 1;               // of a chunk's parameters
  bool overlap_data = true;      // false: all-gather first, reduce-scatter last
  bool overlap_pipeline = true;  // false: a stage waits for what it sends, too

  PipelineSpec Pipeline() const {
    return {schedule, mesh.Size(Axis::kPipeline), chunks, micro_batches};
  }
};

// FLOPs of a step as the model needs them (without recomputation): what MFU counts.
double ModelFlops(const TrainingStep& step);
// Parameters of the model.
double ModelParameters(const ModelShape& model);
// Computation of one pass of a chunk. `last`: the one with the logits. Where the schedule splits
// the backward pass, the gradients of the input and those of the weights take half of it each, and
// a forward pass done again counts to the former.
absl::Duration PassTime(const TrainingStep& step, PassKind kind, bool last);
int ChunkLayers(const TrainingStep& step);
// Bytes of one chunk's parameters on one GPU: those that all replicas share (`stage` and `chunk`
// say whether embeddings are among them), and those of its experts.
Bytes DenseChunkBytes(const TrainingStep& step, int stage, int chunk);
Bytes ExpertChunkBytes(const TrainingStep& step);
// What one GPU sends a pass: its activations to the next stage; keys and values of a layer to its
// neighbour in the context ring; tokens of all layers of a chunk to each other expert.
Bytes ActivationBytes(const TrainingStep& step);
Bytes ContextBytes(const TrainingStep& step);
Bytes ExpertBytes(const TrainingStep& step);

// InvalidArgument: a number is out of range, or does not divide what it should; says which.
absl::Status CheckStep(const TrainingStep& step);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOADS_TRAINING_MODEL_H_
