// Number types and reduction operators of the collectives: c10d's and NCCL's.
#ifndef WEFT_COLLECTIVES_DATA_TYPE_H_
#define WEFT_COLLECTIVES_DATA_TYPE_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::collectives {

enum class DataType : uint8_t {
  kBool,
  kUint8,
  kInt8,
  kInt16,
  kInt32,
  kInt64,
  kFloat16,
  kBFloat16,
  kFloat32,
  kFloat64,
  kComplex64,
  kComplex128,
};
inline constexpr int kDataTypeCount = 12;

// Sums and products of integers wrap; kAverage divides the sum by the number of ranks (integers:
// truncating); min and max of a NaN are a NaN; complex numbers have sum, average and product only;
// bool reduces as c10d does (sum, max, or: or; product, min, and: and). 16-bit floats add in
// float32 and round to nearest even once per hop.
enum class ReduceOp : uint8_t {
  kSum,
  kAverage,
  kMin,
  kMax,
  kProduct,
  kBitAnd,
  kBitOr,
  kBitXor,
};
inline constexpr int kReduceOpCount = 8;

size_t SizeOf(DataType type);         // bytes of one element
const char* ToString(DataType type);  // nccl-tests' names: "float", "bfloat16", "int32" ...
const char* ToString(ReduceOp op);    // "sum", "avg", "min", "max", "prod", "band", "bor", "bxor"
absl::StatusOr<DataType> ParseDataType(absl::string_view name);
absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view name);
bool Supports(ReduceOp op, DataType type);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_DATA_TYPE_H_
