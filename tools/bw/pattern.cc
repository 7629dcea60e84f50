#include "tools/bw/pattern.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/status.h"
#include "collectives/reduce.h"

namespace weft::bw {
namespace {

using collectives::DataType;
using collectives::ReduceOp;

constexpr size_t kPeriod = 1009;  // a prime: no power of two, and no chunk, is a multiple of it
constexpr int kValuesMax = 8;
constexpr int kExactBFloat16 = 256;  // whole numbers up to this are exact in 8 bits of mantissa

// IEEE binary16 of a whole number from 0 to 8.
uint16_t HalfOf(int value) {
  if (value == 0) return 0;
  unsigned number = static_cast<unsigned>(value);
  int exponent = std::bit_width(number) - 1;
  unsigned fraction = (number << (10 - exponent)) & 0x3FFU;
  return static_cast<uint16_t>(static_cast<unsigned>(exponent + 15) << 10 | fraction);
}

template <typename T>
void Put(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}

void PutNumber(std::byte* to, DataType type, int value) {
  switch (type) {
    case DataType::kBool:
      return Put<uint8_t>(to, value % 2);
    case DataType::kUint8:
      return Put<uint8_t>(to, static_cast<uint8_t>(value));
    case DataType::kInt8:
      return Put<int8_t>(to, static_cast<int8_t>(value));
    case DataType::kInt16:
      return Put<int16_t>(to, static_cast<int16_t>(value));
    case DataType::kInt32:
      return Put<int32_t>(to, value);
    case DataType::kInt64:
      return Put<int64_t>(to, value);
    case DataType::kFloat16:
      return Put<uint16_t>(to, HalfOf(value));
    case DataType::kBFloat16:
      return Put<uint16_t>(
          to, static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16));
    case DataType::kFloat32:
      return Put<float>(to, static_cast<float>(value));
    case DataType::kFloat64:
      return Put<double>(to, value);
    case DataType::kComplex64:
      Put<float>(to, static_cast<float>(value));
      return Put<float>(to + sizeof(float), 0);
    case DataType::kComplex128:
      Put<double>(to, value);
      return Put<double>(to + sizeof(double), 0);
  }
}

}  // namespace

Pattern::Pattern(DataType type, ReduceOp op, int ranks)
    : type_(type),
      op_(op),
      element_(collectives::SizeOf(type)),
      ranks_(ranks),
      // Products of twos leave the range of float16 after 15 ranks, and are infinite on all paths.
      values_(op == ReduceOp::kProduct
                  ? 3
                  : std::clamp(kExactBFloat16 / std::max(ranks, 1), 2, kValuesMax)),
      stride_(op == ReduceOp::kProduct
                  ? 1
                  : (std::max(ranks, 1) + kExactBFloat16 - 1) / kExactBFloat16) {}

std::vector<std::byte> Pattern::PeriodOf(int rank) const {
  std::vector<std::byte> period(kPeriod * element_);
  // A multiplicative hash of (index, rank); its high bits are well mixed.
  const int lowest = op_ == ReduceOp::kProduct ? 1 : 0;
  for (size_t i = 0; i < kPeriod; ++i) {
    uint32_t mixed =
        (static_cast<uint32_t>(i) * 2654435761U) ^ (static_cast<uint32_t>(rank + 1) * 2246822519U);
    mixed = (mixed ^ (mixed >> 15)) * 3266489917U;
    int value = lowest + static_cast<int>((mixed >> 16) % static_cast<uint32_t>(values_ - lowest));
    if ((i + static_cast<size_t>(rank)) % static_cast<size_t>(stride_) != 0) value = lowest;
    PutNumber(period.data() + i * element_, type_, value);
  }
  return period;
}

void Pattern::Write(std::byte* to, int rank, size_t count) const {
  std::vector<std::byte> period = PeriodOf(rank);
  const size_t bytes = count * element_;
  for (size_t at = 0; at < bytes; at += period.size()) {
    std::memcpy(to + at, period.data(), std::min(period.size(), bytes - at));
  }
}

std::vector<std::byte> Pattern::Expected(const std::vector<int>& ranks) const {
  std::vector<std::byte> result = PeriodOf(ranks[0]);
  if (ranks.size() == 1) return result;
  auto reduce = collectives::ReduceFor(type_, op_, collectives::KernelSet::kReference);
  WEFT_CHECK(reduce != nullptr, ToString(op_) << " of " << ToString(type_));
  for (size_t i = 1; i < ranks.size(); ++i) {
    std::vector<std::byte> next = PeriodOf(ranks[i]);
    reduce(result.data(), result.data(), next.data(), result.size());
  }
  if (op_ == ReduceOp::kAverage) {
    collectives::ScaleFor(type_, collectives::KernelSet::kReference)(result.data(), result.size(),
                                                                     ranks_);
  }
  return result;
}

int64_t Pattern::Wrong(const std::byte* data, const std::vector<int>& ranks, size_t first,
                       size_t count) const {
  std::vector<std::byte> expected = Expected(ranks);
  int64_t wrong = 0;
  for (size_t done = 0; done < count;) {
    size_t in_period = (first + done) % kPeriod;
    size_t run = std::min(kPeriod - in_period, count - done);
    const std::byte* want = expected.data() + in_period * element_;
    const std::byte* have = data + done * element_;
    if (std::memcmp(want, have, run * element_) != 0) {
      for (size_t i = 0; i < run; ++i) {
        wrong += std::memcmp(want + i * element_, have + i * element_, element_) != 0;
      }
    }
    done += run;
  }
  return wrong;
}

}  // namespace weft::bw
