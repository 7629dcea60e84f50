#include "collectives/c10d/sparse.h"

#include <array>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "collectives/c10d/tensors.h"

namespace weft::collectives {
namespace {

constexpr size_t kDimensionsMax = 16;

// What each rank tells of its tensor before the tensors themselves are gathered.
struct Shape {
  int64_t elements = 0;  // that are there: nnz
  int64_t type = 0;
  int64_t sparse_dimensions = 0;
  int64_t dimensions = 0;
  std::array<int64_t, kDimensionsMax> sizes{};

  bool Fits(const Shape& other) const {
    return type == other.type && sparse_dimensions == other.sparse_dimensions &&
           dimensions == other.dimensions && sizes == other.sizes;
  }
  std::string ToText() const {
    return absl::StrCat(c10::toString(static_cast<at::ScalarType>(type)), " [",
                        absl::StrJoin(sizes.begin(), sizes.begin() + dimensions, ", "), "] with ",
                        sparse_dimensions, " sparse dimensions");
  }
};
constexpr size_t kShapeWords = sizeof(Shape) / sizeof(int64_t);

Shape ShapeOf(const at::Tensor& tensor) {
  Shape shape;
  shape.elements = tensor._nnz();
  shape.type = static_cast<int64_t>(tensor.scalar_type());
  shape.sparse_dimensions = tensor.sparse_dim();
  shape.dimensions = tensor.dim();
  std::copy(tensor.sizes().begin(), tensor.sizes().end(), shape.sizes.begin());
  return shape;
}

// Rank r's part has `counts[r]` elements.
absl::StatusOr<std::vector<at::Tensor>> Gather(Communicator& communicator, const at::Tensor& own,
                                               const std::vector<size_t>& counts) {
  std::vector<size_t> offsets;
  size_t total = 0;
  for (size_t count : counts) {
    offsets.push_back(total);
    total += count;
  }
  at::Tensor all = at::empty({static_cast<int64_t>(total)}, own.options());
  WEFT_RETURN_IF_ERROR(communicator
                           .AllGatherV(own.const_data_ptr(), all.data_ptr(), counts, offsets,
                                       MovedType("sparse all-reduce", own))
                           ->Wait());
  std::vector<at::Tensor> parts;
  for (size_t r = 0; r < counts.size(); ++r) {
    parts.push_back(
        all.narrow(0, static_cast<int64_t>(offsets[r]), static_cast<int64_t>(counts[r])));
  }
  return parts;
}

}  // namespace

absl::StatusOr<at::Tensor> SparseAllReduce(Communicator& communicator, const at::Tensor& input) {
  at::NoGradGuard no_gradient;
  if (input.dim() > static_cast<int64_t>(kDimensionsMax)) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sparse tensor of ", input.dim(), " dimensions; at most ", kDimensionsMax));
  }
  const at::Tensor own = input.coalesce();
  const size_t size = static_cast<size_t>(communicator.size());
  const Shape shape = ShapeOf(own);
  std::vector<Shape> shapes(size);
  WEFT_RETURN_IF_ERROR(
      communicator.AllGather(&shape, shapes.data(), kShapeWords, DataType::kInt64)->Wait());
  int64_t row = 1;  // values of one index
  for (int64_t d = shape.sparse_dimensions; d < shape.dimensions; ++d) row *= shape.sizes[d];
  std::vector<size_t> index_counts, value_counts;
  for (size_t r = 0; r < size; ++r) {
    if (!shapes[r].Fits(shape)) {
      return absl::InvalidArgumentError(
          absl::StrCat("sparse all-reduce: rank ", r, " has ", shapes[r].ToText(), ", rank ",
                       communicator.rank().value(), " has ", shape.ToText()));
    }
    index_counts.push_back(static_cast<size_t>(shapes[r].elements * shape.sparse_dimensions));
    value_counts.push_back(static_cast<size_t>(shapes[r].elements * row));
  }
  WEFT_ASSIGN_OR_RETURN(auto indices,
                        Gather(communicator, own.indices().contiguous().view(-1), index_counts));
  WEFT_ASSIGN_OR_RETURN(auto values,
                        Gather(communicator, own.values().contiguous().view(-1), value_counts));
  std::vector<int64_t> value_sizes = own.values().sizes().vec();
  for (size_t r = 0; r < size; ++r) {
    value_sizes[0] = shapes[r].elements;
    indices[r] = indices[r].view({shape.sparse_dimensions, shapes[r].elements});
    values[r] = values[r].view(value_sizes);
  }
  return at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values, 0), own.sizes(), own.options())
      .coalesce();
}

}  // namespace weft::collectives
