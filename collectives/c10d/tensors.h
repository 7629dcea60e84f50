// The backend's requirements of tensors, and their conversion to pointers and counts. An invalid
// argument is thrown as c10::Error, which names the call, the tensor's type, shape
// and device, and what would be right.
#ifndef WEFT_COLLECTIVES_C10D_TENSORS_H_
#define WEFT_COLLECTIVES_C10D_TENSORS_H_

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <torch/csrc/distributed/c10d/Types.hpp>
#include <vector>

#include "collectives/communicator.h"
#include "collectives/data_type.h"

namespace weft::collectives {

// "Float [2, 3] on cpu".
std::string Describe(const at::Tensor& tensor);

// A defined, dense tensor in host memory, which it has not given up.
void CheckTensor(const char* call, const at::Tensor& tensor);
// Exactly one, as c10d's lists have it outside of coalesced calls.
at::Tensor& OnlyTensor(const char* call, std::vector<at::Tensor>& tensors);
void CheckRank(const char* call, const char* what, int64_t rank, int size);
inline GroupRank RankOf(int64_t rank) { return GroupRank(static_cast<int32_t>(rank)); }
void CheckSameType(const char* call, const at::Tensor& a, const at::Tensor& b);
// `elements` is what the sizes of the other tensors ask for.
void CheckElements(const char* call, const at::Tensor& tensor, int64_t elements,
                   const char* because);

// For calls that only move bytes: any type whose elements have 1, 2, 4, 8 or 16 bytes.
DataType MovedType(const char* call, const at::Tensor& tensor);
// PREMUL_SUM is a sum, of tensors that were multiplied before.
ReduceOp OperatorOf(const char* call, const c10d::ReduceOp& op);
// A type that `op` knows.
DataType ReducedType(const char* call, const at::Tensor& tensor, ReduceOp op);

// Whether the tensor's memory holds its elements in their order. That of a lazy conjugate (conj())
// or negative does not: a bit of the tensor says what its elements are.
inline bool IsPlain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}
// Itself, or a plain copy.
at::Tensor Plain(const at::Tensor& tensor);
// By any thread, whatever its modes: the target may be a leaf that requires a gradient, or an
// inference tensor.
void CopyInto(at::Tensor target, const at::Tensor& source);

// Whether the tensors lie one behind the other in one storage, each plain: then the first's pointer
// is that of all.
bool AreOneBlock(const std::vector<at::Tensor>& tensors);
// The tensors' elements one behind the other: themselves where they are one block, else a copy.
at::Tensor Flattened(const std::vector<at::Tensor>& tensors);
// Memory for all elements of the tensors, one behind the other, to be received into: their own
// where they are one block; else a new one, and `Unflatten` copies it to them.
at::Tensor FlatTarget(const std::vector<at::Tensor>& tensors, bool* staged);
void Unflatten(const at::Tensor& flat, const std::vector<at::Tensor>& tensors);

// Rows given per rank, turned into elements. Empty `splits`: even.
struct Parts {
  std::vector<size_t> counts;
  std::vector<size_t> offsets;
};
Parts PartsOf(const char* call, const at::Tensor& tensor, const std::vector<int64_t>& splits,
              int size);
Parts PartsOf(const std::vector<at::Tensor>& tensors);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_TENSORS_H_
