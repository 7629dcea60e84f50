// All-reduce of sparse tensors: every rank's indices and values are gathered, and added up where
// indices meet.
#ifndef WEFT_COLLECTIVES_C10D_SPARSE_H_
#define WEFT_COLLECTIVES_C10D_SPARSE_H_

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "collectives/communicator.h"

namespace weft::collectives {

// All-reduces one tensor: Start() on the communicator of the group, so that a rank that is in
// another call there is found at once, then Finish() on another thread and communicator.
class SparseAllReduce {
 public:
  // `input`: a COO tensor in host memory, of at most kDimensionsMax dimensions, on `size` ranks.
  SparseAllReduce(const at::Tensor& input, int size);

  // Gathers what the tensors must agree on: type, shape and number of sparse dimensions. This
  // object must outlive the work.
  WorkPtr Start(Communicator& communicator);
  // The sum over all ranks, coalesced. Blocks for `started`, the work of Start(), and three
  // collectives. kInvalidArgument names a rank whose tensor differs.
  absl::StatusOr<at::Tensor> Finish(Communicator& communicator, Work& started);

  static constexpr size_t kDimensionsMax = 16;

 private:
  struct Shape {
    int64_t type = 0;
    int64_t sparse_dimensions = 0;
    int64_t dimensions = 0;
    std::array<int64_t, kDimensionsMax> sizes{};

    bool operator==(const Shape&) const = default;
    std::string ToText() const;
  };

  const at::Tensor input_;
  Shape shape_;
  std::vector<Shape> shapes_;  // by rank
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_SPARSE_H_
