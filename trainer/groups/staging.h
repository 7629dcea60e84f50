// Tensors that a communicator moves through host memory: it reads and writes the memory of this
// host, so that a tensor that goes a device's way (device/device.h) has a copy there. On the CPU's
// way nothing is copied.
#ifndef WEFT_TRAINER_GROUPS_STAGING_H_
#define WEFT_TRAINER_GROUPS_STAGING_H_

#include <ATen/ATen.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "absl/types/span.h"

namespace weft::train {

// Rows of a tensor, by rank: how many, and the first one.
struct RowParts {
  absl::Span<const size_t> counts, begins;
};

// What to copy once the communicator has written: from host memory (first) to the tensor (second).
using Arrivals = std::vector<std::pair<at::Tensor, at::Tensor>>;

// What the communicator reads for `tensor`; a copy waits for the work that writes the tensor.
at::Tensor Outgoing(const at::Tensor& tensor);
// What the communicator writes for `tensor`.
at::Tensor Incoming(const at::Tensor& tensor, Arrivals& arrivals);
// What the communicator reads and then writes for `tensor`.
at::Tensor InPlace(const at::Tensor& tensor, Arrivals& arrivals);
// The same of some rows of `tensor`, [rows, width]: only these are copied, as the others may be in
// use. Results have the tensor's shape.
at::Tensor OutgoingRows(const at::Tensor& tensor, const RowParts& parts);
at::Tensor IncomingRows(const at::Tensor& tensor, const RowParts& parts, Arrivals& arrivals);

}  // namespace weft::train

#endif  // WEFT_TRAINER_GROUPS_STAGING_H_
