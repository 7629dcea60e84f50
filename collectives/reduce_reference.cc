// The naive reference of the kernels: one element at a time, in the plainest form that says what is
// meant.
#include <cmath>
#include <complex>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "collectives/reduce.h"

namespace weft::collectives::internal {
namespace {

// A 16-bit float as its value; narrowing looks for the nearest by halving the interval of all
// representable values, ties to the even mantissa.
template <int kMantissaBits>
struct Half {
  static constexpr int kExponentBits = 15 - kMantissaBits;
  static constexpr int kBias = (1 << (kExponentBits - 1)) - 1;
  static constexpr uint16_t kInfinity = ((1 << kExponentBits) - 1) << kMantissaBits;

  uint16_t bits;

  static double Magnitude(uint16_t magnitude) {  // also of kInfinity: as if one binade more
    int exponent = magnitude >> kMantissaBits;
    double mantissa = magnitude & ((1 << kMantissaBits) - 1);
    if (exponent == 0) return std::ldexp(mantissa, 1 - kBias - kMantissaBits);
    return std::ldexp(mantissa + (1 << kMantissaBits), exponent - kBias - kMantissaBits);
  }
  float Value() const {
    uint16_t magnitude = bits & 0x7FFF;
    float value = std::numeric_limits<float>::quiet_NaN();
    if (magnitude < kInfinity) value = static_cast<float>(Magnitude(magnitude));
    if (magnitude == kInfinity) value = std::numeric_limits<float>::infinity();
    return (bits & 0x8000) ? -value : value;
  }
  static Half Of(float value) {
    uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) {
      return {static_cast<uint16_t>(sign | kInfinity | (1 << (kMantissaBits - 1)))};
    }
    double wanted = std::fabs(static_cast<double>(value));
    uint16_t low = 0, high = kInfinity;  // Magnitude(low) <= wanted, or both are infinite
    if (wanted >= Magnitude(kInfinity)) return {static_cast<uint16_t>(sign | kInfinity)};
    while (high - low > 1) {
      uint16_t middle = static_cast<uint16_t>((low + high) / 2);
      (Magnitude(middle) <= wanted ? low : high) = middle;
    }
    double below = wanted - Magnitude(low), above = Magnitude(high) - wanted;
    bool up = above < below || (above == below && (low & 1));
    return {static_cast<uint16_t>(sign | (up ? high : low))};
  }
};
using Float16 = Half<10>;
using BFloat16 = Half<7>;

struct Bool {
  uint8_t value;
};

template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, Float16> || std::is_same_v<T, BFloat16>;
template <typename T>
inline constexpr bool kIsComplex =
    std::is_same_v<T, std::complex<float>> || std::is_same_v<T, std::complex<double>>;

template <ReduceOp kOp, typename T>
T Apply(T a, T b) {
  if constexpr (kIsHalf<T>) {
    return T::Of(Apply<kOp>(a.Value(), b.Value()));
  } else if constexpr (std::is_same_v<T, Bool>) {
    bool x = a.value != 0, y = b.value != 0;
    if constexpr (kOp == ReduceOp::kSum || kOp == ReduceOp::kMax || kOp == ReduceOp::kBitOr) {
      return {static_cast<uint8_t>(x || y)};
    } else if constexpr (kOp == ReduceOp::kBitXor) {
      return {static_cast<uint8_t>(x != y)};
    } else {
      return {static_cast<uint8_t>(x && y)};
    }
  } else if constexpr (kIsComplex<T>) {
    if constexpr (kOp == ReduceOp::kSum) return a + b;
    return T(a.real() * b.real() - a.imag() * b.imag(), a.real() * b.imag() + a.imag() * b.real());
  } else if constexpr (std::is_integral_v<T>) {
    uint64_t x = static_cast<uint64_t>(a), y = static_cast<uint64_t>(b);
    if constexpr (kOp == ReduceOp::kSum) return static_cast<T>(x + y);
    if constexpr (kOp == ReduceOp::kProduct) return static_cast<T>(x * y);
    if constexpr (kOp == ReduceOp::kMin) return a < b ? a : b;
    if constexpr (kOp == ReduceOp::kMax) return a > b ? a : b;
    if constexpr (kOp == ReduceOp::kBitAnd) return static_cast<T>(x & y);
    if constexpr (kOp == ReduceOp::kBitOr) return static_cast<T>(x | y);
    return static_cast<T>(x ^ y);
  } else {
    if constexpr (kOp == ReduceOp::kSum) return a + b;
    if constexpr (kOp == ReduceOp::kProduct) return a * b;
    if (std::isnan(a)) return a;
    if constexpr (kOp == ReduceOp::kMin) return a < b ? a : b;
    return a > b ? a : b;
  }
}

template <typename T, ReduceOp kOp>
void Reduce(std::byte* out, const std::byte* local, const std::byte* incoming, size_t bytes) {
  for (size_t at = 0; at < bytes; at += sizeof(T)) {
    T a, b;
    std::memcpy(&a, local + at, sizeof(T));
    std::memcpy(&b, incoming + at, sizeof(T));
    T result = Apply<kOp>(a, b);
    std::memcpy(out + at, &result, sizeof(T));
  }
}

// In float32, rounded once.
template <typename T, ReduceOp kOp>
void ReduceAll(std::byte* out, const std::byte* const* operands, size_t count, size_t bytes,
               int divisor) {
  for (size_t at = 0; at < bytes; at += sizeof(T)) {
    float sum = 0;
    for (size_t o = 0; o < count; ++o) {
      T next;
      std::memcpy(&next, operands[o] + at, sizeof(T));
      sum = o == 0 ? next.Value() : Apply<kOp>(sum, next.Value());
    }
    const T result = T::Of(sum / static_cast<float>(divisor));
    std::memcpy(out + at, &result, sizeof(T));
  }
}

template <typename T>
void Scale(std::byte* data, size_t bytes, int divisor) {
  for (size_t at = 0; at < bytes; at += sizeof(T)) {
    T a;
    std::memcpy(&a, data + at, sizeof(T));
    if constexpr (kIsHalf<T>) {
      a = T::Of(a.Value() / static_cast<float>(divisor));
    } else if constexpr (std::is_integral_v<T>) {
      a = static_cast<T>(static_cast<int64_t>(a) / divisor);
    } else if constexpr (kIsComplex<T>) {
      using Part = typename T::value_type;
      a = T(a.real() / static_cast<Part>(divisor), a.imag() / static_cast<Part>(divisor));
    } else {
      a = a / static_cast<T>(divisor);
    }
    std::memcpy(data + at, &a, sizeof(T));
  }
}

template <typename T>
void FillType(KernelTable& table, DataType type) {
  net::ReduceFn* row = table.reduce[static_cast<int>(type)];
  row[static_cast<int>(ReduceOp::kSum)] = &Reduce<T, ReduceOp::kSum>;
  row[static_cast<int>(ReduceOp::kProduct)] = &Reduce<T, ReduceOp::kProduct>;
  if constexpr (!kIsComplex<T>) {
    row[static_cast<int>(ReduceOp::kMin)] = &Reduce<T, ReduceOp::kMin>;
    row[static_cast<int>(ReduceOp::kMax)] = &Reduce<T, ReduceOp::kMax>;
  }
  if constexpr (std::is_integral_v<T> || std::is_same_v<T, Bool>) {
    row[static_cast<int>(ReduceOp::kBitAnd)] = &Reduce<T, ReduceOp::kBitAnd>;
    row[static_cast<int>(ReduceOp::kBitOr)] = &Reduce<T, ReduceOp::kBitOr>;
    row[static_cast<int>(ReduceOp::kBitXor)] = &Reduce<T, ReduceOp::kBitXor>;
  }
  if constexpr (kIsHalf<T>) {
    ReduceAllFn* all = table.reduce_all[static_cast<int>(type)];
    all[static_cast<int>(ReduceOp::kSum)] = &ReduceAll<T, ReduceOp::kSum>;
    all[static_cast<int>(ReduceOp::kProduct)] = &ReduceAll<T, ReduceOp::kProduct>;
  }
  if constexpr (!std::is_same_v<T, Bool>) table.scale[static_cast<int>(type)] = &Scale<T>;
}

}  // namespace

void FillReference(KernelTable& table) {
  FillType<Bool>(table, DataType::kBool);
  FillType<uint8_t>(table, DataType::kUint8);
  FillType<int8_t>(table, DataType::kInt8);
  FillType<int16_t>(table, DataType::kInt16);
  FillType<int32_t>(table, DataType::kInt32);
  FillType<int64_t>(table, DataType::kInt64);
  FillType<Float16>(table, DataType::kFloat16);
  FillType<BFloat16>(table, DataType::kBFloat16);
  FillType<float>(table, DataType::kFloat32);
  FillType<double>(table, DataType::kFloat64);
  FillType<std::complex<float>>(table, DataType::kComplex64);
  FillType<std::complex<double>>(table, DataType::kComplex128);
  std::memcpy(table.stream, table.reduce, sizeof(table.stream));
}

}  // namespace weft::collectives::internal
