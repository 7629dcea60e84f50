// One training step of a job with tensor, context, expert, data and pipeline parallelism, as
// Megatron-LM and MegaScale run it: what each GPU computes, sends and waits for.
//
// Placement. The ranks of the mesh (topology/job/mesh.h) run on the fabric's endpoints in their
// order. A tensor group stays within one host; its members act alike, so a pass is one kCompute,
// and what they send is one transfer of width `tensor`.
//
// How long a pass computes and how much it sends is in training_model.h.
//
// Communication, in bytes of `element`:
//   pipeline   s b h / (tensor * context) a pass between stages, on every lane
//   data       all-gather of a chunk's parameters before its first forward pass, reduce-scatter of
//              its gradients after its last backward pass; in `buckets` parts, one after the other
//              on each stage; rings over all replicas (ZeRO; MegaScale, section 3.2)
//   context    a ring round `context` of keys and values, each layer, under the computation; twice
//              as much backward
//   expert     dispatch and combine round `expert` replicas, before and after each pass of a chunk
//              (all of its layers' at once: as exposed as in the layers, in fewer operations)
#ifndef WEFT_TOPOLOGY_SIM_WORKLOADS_TRAINING_STEP_H_
#define WEFT_TOPOLOGY_SIM_WORKLOADS_TRAINING_STEP_H_

#include "absl/status/statusor.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/workload.h"
#include "topology/sim/workloads/training_model.h"

namespace weft::topology {

// Appends the step to `workload`; the id returned ends with it. InvalidArgument: the layout does
// not fit model, fabric or itself, naming the number and what would fit. ResourceExhausted: more
// than 30 million operations.
absl::StatusOr<OperationId> AddTrainingStep(Workload& workload, const Fabric& fabric,
                                            const TrainingStep& step);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOADS_TRAINING_STEP_H_
