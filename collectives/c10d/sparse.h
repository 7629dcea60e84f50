// All-reduce of sparse tensors: every rank's indices and values are gathered, and added up where
// indices meet.
#ifndef WEFT_COLLECTIVES_C10D_SPARSE_H_
#define WEFT_COLLECTIVES_C10D_SPARSE_H_

#include <ATen/ATen.h>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace weft::collectives {

// The sum over all ranks, coalesced. `input` is a COO tensor in host memory; shapes, types and the
// number of sparse dimensions must agree, else kInvalidArgument names the rank that differs. Blocks
// for three collectives.
absl::StatusOr<at::Tensor> SparseAllReduce(Communicator& communicator, const at::Tensor& input);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_SPARSE_H_
