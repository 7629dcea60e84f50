#include "collectives/c10d/sparse.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "collectives/c10d/tensors.h"

namespace weft::collectives {
namespace {

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

std::string SparseAllReduce::Shape::ToText() const {
  return absl::StrCat(c10::toString(static_cast<at::ScalarType>(type)), " [",
                      absl::StrJoin(sizes.begin(), sizes.begin() + dimensions, ", "), "] with ",
                      sparse_dimensions, " sparse dimensions");
}

SparseAllReduce::SparseAllReduce(const at::Tensor& input, int size)
    : input_(input), shapes_(static_cast<size_t>(size)) {
  TORCH_CHECK(input.dim() <= static_cast<int64_t>(kDimensionsMax),
              "weft sparse all-reduce: a tensor of ", input.dim(), " dimensions; at most ",
              kDimensionsMax);
  shape_.type = static_cast<int64_t>(input.scalar_type());
  shape_.sparse_dimensions = input.sparse_dim();
  shape_.dimensions = input.dim();
  std::copy(input.sizes().begin(), input.sizes().end(), shape_.sizes.begin());
}

WorkPtr SparseAllReduce::Start(Communicator& communicator) {
  constexpr size_t kShapeWords = sizeof(Shape) / sizeof(int64_t);
  return communicator.AllGather(&shape_, shapes_.data(), kShapeWords, DataType::kInt64);
}

absl::StatusOr<at::Tensor> SparseAllReduce::Finish(Communicator& communicator, Work& started) {
  at::NoGradGuard no_gradient;
  WEFT_RETURN_IF_ERROR(started.Wait());
  for (size_t r = 0; r < shapes_.size(); ++r) {
    if (shapes_[r] == shape_) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("sparse all-reduce: rank ", r, " has ", shapes_[r].ToText(), ", rank ",
                     communicator.rank().value(), " has ", shape_.ToText()));
  }
  const at::Tensor own = input_.coalesce();
  const int64_t own_elements = own._nnz();
  std::vector<int64_t> elements(shapes_.size());  // that are there, by rank
  WEFT_RETURN_IF_ERROR(
      communicator.AllGather(&own_elements, elements.data(), 1, DataType::kInt64)->Wait());
  int64_t row = 1;  // values of one index
  for (int64_t d = shape_.sparse_dimensions; d < shape_.dimensions; ++d) {
    row *= shape_.sizes[static_cast<size_t>(d)];
  }
  std::vector<size_t> index_counts, value_counts;
  for (int64_t count : elements) {
    index_counts.push_back(static_cast<size_t>(count * shape_.sparse_dimensions));
    value_counts.push_back(static_cast<size_t>(count * row));
  }
  WEFT_ASSIGN_OR_RETURN(auto indices,
                        Gather(communicator, own.indices().contiguous().view(-1), index_counts));
  WEFT_ASSIGN_OR_RETURN(auto values,
                        Gather(communicator, own.values().contiguous().view(-1), value_counts));
  std::vector<int64_t> value_sizes = own.values().sizes().vec();
  for (size_t r = 0; r < elements.size(); ++r) {
    value_sizes[0] = elements[r];
    indices[r] = indices[r].view({shape_.sparse_dimensions, elements[r]});
    values[r] = values[r].view(value_sizes);
  }
  return at::sparse_coo_tensor(at::cat(indices, 1), at::cat(values, 0), own.sizes(), own.options())
      .coalesce();
}

}  // namespace weft::collectives
