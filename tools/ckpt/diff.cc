#include "tools/ckpt/diff.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "trainer/checkpoint/manifest.h"
#include "trainer/checkpoint/safetensors.h"
#include "trainer/kernels/kernels.h"

namespace weft::ckpt {
namespace {

using train::BufferLayout;
using train::CheckpointReader;
using train::DType;

// Elements that are read at a time.
constexpr int64_t kChunk = 1 << 20;

template <typename T>
T Read(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(value));
  return value;
}

double ToDouble(DType dtype, const std::byte* at) {
  switch (dtype) {
    case DType::kBool:
    case DType::kU8:
      return Read<uint8_t>(at);
    case DType::kI8:
      return Read<int8_t>(at);
    case DType::kI16:
      return Read<int16_t>(at);
    case DType::kU16:
      return Read<uint16_t>(at);
    case DType::kF16:
      return train::kernels::Load(Read<train::kernels::Fp16>(at));
    case DType::kBF16:
      return train::kernels::Load(Read<train::kernels::Bf16>(at));
    case DType::kI32:
      return Read<int32_t>(at);
    case DType::kU32:
      return Read<uint32_t>(at);
    case DType::kF32:
      return Read<float>(at);
    case DType::kI64:
      return static_cast<double>(Read<int64_t>(at));
    case DType::kU64:
      return static_cast<double>(Read<uint64_t>(at));
    case DType::kF64:
      return Read<double>(at);
  }
  return 0;
}

void CompareElements(DType dtype, absl::Span<const std::byte> first,
                     absl::Span<const std::byte> second, TensorDifference& difference) {
  const auto width = static_cast<size_t>(train::SizeOf(dtype));
  for (size_t at = 0; at < first.size(); at += width) {
    if (std::memcmp(first.data() + at, second.data() + at, width) == 0) continue;
    ++difference.differing;
    const double a = ToDouble(dtype, first.data() + at), b = ToDouble(dtype, second.data() + at);
    double absolute = std::abs(a - b);
    if (!std::isfinite(absolute)) absolute = std::numeric_limits<double>::infinity();
    const double size = std::max(std::abs(a), std::abs(b));
    double relative = size > 0 ? absolute / size : 0;
    if (!std::isfinite(relative)) relative = std::numeric_limits<double>::infinity();
    difference.max_absolute = std::max(difference.max_absolute, absolute);
    difference.max_relative = std::max(difference.max_relative, relative);
  }
}

absl::Status CompareValues(const CheckpointReader& first, const CheckpointReader& second,
                           const BufferLayout& buffer, TensorDifference& difference) {
  difference.elements = buffer.elements;
  std::vector<std::byte> a, b;
  for (int64_t begin = 0; begin < buffer.elements; begin += kChunk) {
    const int64_t end = std::min(buffer.elements, begin + kChunk);
    const auto bytes = static_cast<size_t>((end - begin) * train::SizeOf(buffer.dtype));
    a.resize(bytes);
    b.resize(bytes);
    WEFT_RETURN_IF_ERROR(first.Read(buffer.name, begin, end, absl::MakeSpan(a)));
    WEFT_RETURN_IF_ERROR(second.Read(buffer.name, begin, end, absl::MakeSpan(b)));
    CompareElements(buffer.dtype, a, b, difference);
  }
  if (difference.differing > 0) difference.comparison = Comparison::kValues;
  return absl::OkStatus();
}

std::string ShapeText(const BufferLayout& buffer, bool has_shapes) {
  if (!has_shapes) return absl::StrCat(buffer.elements, " elements");
  return absl::StrCat("[", absl::StrJoin(buffer.shape, ", "), "]");
}

}  // namespace

absl::StatusOr<std::vector<TensorDifference>> Diff(const CheckpointReader& first,
                                                   const CheckpointReader& second) {
  const bool has_shapes = first.manifest().HasShapes() && second.manifest().HasShapes();
  std::vector<TensorDifference> differences;
  for (const BufferLayout& buffer : first.manifest().buffers) {
    TensorDifference& difference = differences.emplace_back();
    difference.name = buffer.name;
    const BufferLayout* other = second.manifest().Find(buffer.name);
    if (other == nullptr) {
      difference.comparison = Comparison::kOnlyInFirst;
    } else if (other->dtype != buffer.dtype) {
      difference.comparison = Comparison::kType;
      difference.first = std::string(train::NameOf(buffer.dtype));
      difference.second = std::string(train::NameOf(other->dtype));
    } else if (other->elements != buffer.elements || (has_shapes && other->shape != buffer.shape)) {
      difference.comparison = Comparison::kShape;
      difference.first = ShapeText(buffer, has_shapes);
      difference.second = ShapeText(*other, has_shapes);
    } else {
      WEFT_RETURN_IF_ERROR(CompareValues(first, second, buffer, difference));
    }
  }
  for (const BufferLayout& buffer : second.manifest().buffers) {
    if (first.manifest().Find(buffer.name) != nullptr) continue;
    TensorDifference& difference = differences.emplace_back();
    difference.name = buffer.name;
    difference.comparison = Comparison::kOnlyInSecond;
  }
  return differences;
}

}  // namespace weft::ckpt
