#include "collectives/c10d/tensors.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <sstream>

namespace weft::collectives {
namespace {

int64_t TotalElements(const std::vector<at::Tensor>& tensors) {
  int64_t elements = 0;
  for (const at::Tensor& tensor : tensors) elements += tensor.numel();
  return elements;
}

// Our data type for LibTorch's; nothing where we have none of that meaning.
std::optional<DataType> SameType(at::ScalarType type) {
  switch (type) {
    case at::kBool:
      return DataType::kBool;
    case at::kByte:
      return DataType::kUint8;
    case at::kChar:
      return DataType::kInt8;
    case at::kShort:
      return DataType::kInt16;
    case at::kInt:
      return DataType::kInt32;
    case at::kLong:
      return DataType::kInt64;
    case at::kHalf:
      return DataType::kFloat16;
    case at::kBFloat16:
      return DataType::kBFloat16;
    case at::kFloat:
      return DataType::kFloat32;
    case at::kDouble:
      return DataType::kFloat64;
    case at::kComplexFloat:
      return DataType::kComplex64;
    case at::kComplexDouble:
      return DataType::kComplex128;
    default:
      return std::nullopt;
  }
}

}  // namespace

std::string Describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "an undefined tensor";
  std::ostringstream text;
  text << toString(tensor.scalar_type()) << " " << tensor.sizes() << " on " << tensor.device();
  return text.str();
}

void CheckTensor(const char* call, const at::Tensor& tensor) {
  TORCH_CHECK(tensor.defined(), "weft ", call, ": got an undefined tensor");
  TORCH_CHECK(tensor.layout() == at::kStrided, "weft ", call, ": got ", Describe(tensor),
              ", which is not dense; make it so with to_dense()");
  TORCH_CHECK(tensor.device().is_cpu(), "weft ", call, ": got ", Describe(tensor),
              "; this backend moves host memory: copy it there with cpu(), or use NCCL with "
              "Weft's plugin");
  TORCH_CHECK(tensor.numel() == 0 || tensor.storage().data() != nullptr, "weft ", call, ": got ",
              Describe(tensor),
              ", which has no memory: its storage was freed, as FSDP frees those of parameters "
              "between their uses");
}

at::Tensor& OnlyTensor(const char* call, std::vector<at::Tensor>& tensors) {
  TORCH_CHECK(tensors.size() == 1, "weft ", call, ": got ", tensors.size(),
              " tensors where exactly one is possible");
  CheckTensor(call, tensors[0]);
  return tensors[0];
}

void CheckRank(const char* call, const char* what, int64_t rank, int size) {
  TORCH_CHECK(rank >= 0 && rank < size, "weft ", call, ": ", what, " ", rank,
              " is not a rank of this group of ", size);
}

void CheckSameType(const char* call, const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.scalar_type() == b.scalar_type(), "weft ", call, ": got ", Describe(a), " and ",
              Describe(b), ", whose types differ");
}

void CheckElements(const char* call, const at::Tensor& tensor, int64_t elements,
                   const char* because) {
  TORCH_CHECK(tensor.numel() == elements, "weft ", call, ": got ", Describe(tensor), " with ",
              tensor.numel(), " elements, but ", because, " asks for ", elements);
}

DataType MovedType(const char* call, const at::Tensor& tensor) {
  if (const auto type = SameType(tensor.scalar_type()); type.has_value()) return *type;
  switch (tensor.element_size()) {
    case 1:
      return DataType::kUint8;
    case 2:
      return DataType::kInt16;
    case 4:
      return DataType::kInt32;
    case 8:
      return DataType::kInt64;
    case 16:
      return DataType::kComplex128;
    default:
      TORCH_CHECK(false, "weft ", call, ": got ", Describe(tensor), ", whose elements have ",
                  tensor.element_size(), " bytes");
  }
}

ReduceOp OperatorOf(const char* call, const c10d::ReduceOp& op) {
  switch (op.op_) {
    case c10d::ReduceOp::SUM:
    case c10d::ReduceOp::PREMUL_SUM:
      return ReduceOp::kSum;
    case c10d::ReduceOp::AVG:
      return ReduceOp::kAverage;
    case c10d::ReduceOp::PRODUCT:
      return ReduceOp::kProduct;
    case c10d::ReduceOp::MIN:
      return ReduceOp::kMin;
    case c10d::ReduceOp::MAX:
      return ReduceOp::kMax;
    case c10d::ReduceOp::BAND:
      return ReduceOp::kBitAnd;
    case c10d::ReduceOp::BOR:
      return ReduceOp::kBitOr;
    case c10d::ReduceOp::BXOR:
      return ReduceOp::kBitXor;
    default:
      TORCH_CHECK(false, "weft ", call, ": operator ", static_cast<int>(op.op_), " is unknown");
  }
}

DataType ReducedType(const char* call, const at::Tensor& tensor, ReduceOp op) {
  const std::optional<DataType> type = SameType(tensor.scalar_type());
  TORCH_CHECK(type && Supports(op, *type), "weft ", call, ": operator ", ToString(op),
              " is not defined for ", Describe(tensor));
  return *type;
}

at::Tensor Plain(const at::Tensor& tensor) {
  return IsPlain(tensor) ? tensor : tensor.resolve_conj().resolve_neg().contiguous();
}

void CopyInto(at::Tensor target, const at::Tensor& source) {
  // Inference tensors can be written to in inference mode alone.
  std::optional<c10::InferenceMode> mode;
  if (target.is_inference()) mode.emplace();
  at::NoGradGuard no_gradient;
  target.copy_(source);
}

bool AreOneBlock(const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return false;
  const char* expected = static_cast<const char*>(tensors[0].const_data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (!IsPlain(tensor) || !tensor.storage().is_alias_of(tensors[0].storage()) ||
        tensor.const_data_ptr() != expected) {
      return false;
    }
    expected += tensor.nbytes();
  }
  return true;
}

at::Tensor Flattened(const std::vector<at::Tensor>& tensors) {
  if (AreOneBlock(tensors)) return tensors[0];
  at::Tensor flat = at::empty({TotalElements(tensors)}, tensors[0].options());
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()).copy_(tensor);
    offset += tensor.numel();
  }
  return flat;
}

at::Tensor FlatTarget(const std::vector<at::Tensor>& tensors, bool* staged) {
  *staged = !AreOneBlock(tensors);
  if (!*staged) return tensors[0];
  return at::empty({TotalElements(tensors)}, tensors[0].options());
}

void Unflatten(const at::Tensor& flat, const std::vector<at::Tensor>& tensors) {
  int64_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    CopyInto(tensor, flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
}

Parts PartsOf(const char* call, const at::Tensor& tensor, const std::vector<int64_t>& splits,
              int size) {
  int64_t rows = tensor.dim() == 0 ? tensor.numel() : tensor.size(0);
  std::vector<int64_t> row_counts = splits;
  if (row_counts.empty()) {
    TORCH_CHECK(rows % size == 0, "weft ", call, ": got ", Describe(tensor), ", whose ", rows,
                " rows cannot be divided evenly among ", size, " ranks");
    row_counts.assign(size, rows / size);
  }
  TORCH_CHECK(static_cast<int>(row_counts.size()) == size, "weft ", call, ": got ",
              row_counts.size(), " split sizes for ", size, " ranks");
  TORCH_CHECK(std::all_of(row_counts.begin(), row_counts.end(), [](int64_t n) { return n >= 0; }),
              "weft ", call, ": a split size is negative");
  int64_t sum = std::accumulate(row_counts.begin(), row_counts.end(), int64_t{0});
  TORCH_CHECK(sum == rows, "weft ", call, ": got ", Describe(tensor), " with ", rows,
              " rows, but its split sizes add up to ", sum);
  Parts parts;
  size_t row_elements = rows == 0 ? 0 : static_cast<size_t>(tensor.numel() / rows);
  size_t offset = 0;
  for (int64_t count : row_counts) {
    parts.counts.push_back(static_cast<size_t>(count) * row_elements);
    parts.offsets.push_back(offset);
    offset += parts.counts.back();
  }
  return parts;
}

Parts PartsOf(const std::vector<at::Tensor>& tensors) {
  Parts parts;
  size_t offset = 0;
  for (const at::Tensor& tensor : tensors) {
    parts.counts.push_back(static_cast<size_t>(tensor.numel()));
    parts.offsets.push_back(offset);
    offset += parts.counts.back();
  }
  return parts;
}

}  // namespace weft::collectives
