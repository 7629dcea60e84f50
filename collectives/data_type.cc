#include "collectives/data_type.h"

#include <array>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/settings.h"

namespace weft::collectives {
namespace {

struct TypeRow {
  const char* name;
  size_t size;
};

// In the order of DataType.
constexpr std::array<TypeRow, kDataTypeCount> kTypes = {{
    {"bool", 1},
    {"uint8", 1},
    {"int8", 1},
    {"int16", 2},
    {"int32", 4},
    {"int64", 8},
    {"half", 2},
    {"bfloat16", 2},
    {"float", 4},
    {"double", 8},
    {"complex64", 8},
    {"complex128", 16},
}};

constexpr std::array<const char*, kReduceOpCount> kOps = {"sum",  "avg",  "min", "max",
                                                          "prod", "band", "bor", "bxor"};

absl::Status Unknown(absl::string_view what, absl::string_view name,
                     const std::vector<std::string>& candidates) {
  std::string nearest = NearestName(name, candidates);
  return absl::InvalidArgumentError(
      absl::StrCat("no ", what, " \"", name, "\"",
                   nearest.empty() ? "" : absl::StrCat("; did you mean \"", nearest, "\"?")));
}

}  // namespace

size_t SizeOf(DataType type) { return kTypes[static_cast<size_t>(type)].size; }
const char* ToString(DataType type) { return kTypes[static_cast<size_t>(type)].name; }
const char* ToString(ReduceOp op) { return kOps[static_cast<size_t>(op)]; }

absl::StatusOr<DataType> ParseDataType(absl::string_view name) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kTypes.size(); ++i) {
    if (name == kTypes[i].name) return static_cast<DataType>(i);
    names.emplace_back(kTypes[i].name);
  }
  return Unknown("number type", name, names);
}

absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view name) {
  std::vector<std::string> names;
  for (size_t i = 0; i < kOps.size(); ++i) {
    if (name == kOps[i]) return static_cast<ReduceOp>(i);
    names.emplace_back(kOps[i]);
  }
  return Unknown("reduction operator", name, names);
}

bool Supports(ReduceOp op, DataType type) {
  switch (type) {
    case DataType::kBool:
      return op != ReduceOp::kAverage;
    case DataType::kFloat16:
    case DataType::kBFloat16:
    case DataType::kFloat32:
    case DataType::kFloat64:
      return op != ReduceOp::kBitAnd && op != ReduceOp::kBitOr && op != ReduceOp::kBitXor;
    case DataType::kComplex64:
    case DataType::kComplex128:
      return op == ReduceOp::kSum || op == ReduceOp::kAverage || op == ReduceOp::kProduct;
    default:
      return true;
  }
}

}  // namespace weft::collectives
