// In which order a pipeline stage runs the forward and backward passes of its micro-batches.
//
// One chunk of layers a stage: 1F1B (Narayanan et al., "Efficient large-scale language model
// training on GPU clusters using Megatron-LM", SC'21, section 2.2.1): stage i of p warms up with
// p - 1 - i forwards, then alternates, then drains. Several chunks: the interleaved schedule of its
// section 2.2.2: warm-up of 2(p - 1 - i) + (v - 1)p forwards of a chunk; micro-batches go through
// in groups of p, chunk by chunk.
#ifndef WEFT_TOPOLOGY_SIM_WORKLOADS_PIPELINE_ORDER_H_
#define WEFT_TOPOLOGY_SIM_WORKLOADS_PIPELINE_ORDER_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

namespace weft::topology {

struct PipelineShape {
  int stages = 1;         // p
  int chunks = 1;         // v, of each stage: chunk c of stage i holds layers number c * p + i
  int micro_batches = 1;  // m
};

struct Pass {
  bool backward = false;
  int16_t stage = 0;
  int16_t chunk = 0;
  int32_t micro_batch = 0;
  bool operator==(const Pass&) const = default;
};

// Of one stage. InvalidArgument: m is no multiple of p where v > 1 (interleaving needs it), or a
// number is out of range.
absl::StatusOr<std::vector<Pass>> StageOrder(const PipelineShape& shape, int stage);

// The pass whose result this one needs: of the chunk before (forward), of the chunk behind
// (backward), or its own forward pass, at the last chunk. False: the first, which needs none.
bool PassBefore(const PipelineShape& shape, const Pass& pass, Pass& before);

// All passes of all stages in an order in which each comes after those it needs and after the one
// before it on its stage.
absl::StatusOr<std::vector<Pass>> PipelineOrder(const PipelineShape& shape);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOADS_PIPELINE_ORDER_H_
