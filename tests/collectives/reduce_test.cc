// Every kernel of every set against the naive reference, bit for bit.
#include "collectives/reduce.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"

namespace weft::collectives {
namespace {

// Operands that hit the corners: random bits (all kinds of NaN, infinities, subnormals, integers
// that wrap), small values, zeros of both signs.
std::vector<std::byte> Operand(DataType type, size_t count, uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> bytes(count * SizeOf(type));
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  const size_t element = SizeOf(type);
  for (size_t i = 0; i < count; ++i) {
    std::byte* at = bytes.data() + i * element;
    if (i % 7 == 3) std::memset(at, 0, element);
    if (i % 7 == 4) std::memset(at, 0, element), at[element - 1] = std::byte{0x80};
    if (i % 7 == 5) std::memset(at, 0, element), at[0] = std::byte{1};
    if (type == DataType::kFloat16 && i % 7 == 6) {
      const uint16_t corners[] = {0x7C00, 0xFC00, 0x7BFF, 0x0400, 0x03FF, 0x3C00};
      std::memcpy(at, &corners[random.Below(6)], 2);
    }
    if (type == DataType::kBFloat16 && i % 7 == 6) {
      const uint16_t corners[] = {0x7F80, 0xFF80, 0x7F7F, 0x0080, 0x007F, 0x3F80};
      std::memcpy(at, &corners[random.Below(6)], 2);
    }
    if (type == DataType::kFloat32 && i % 7 == 6) {
      const float corners[] = {INFINITY, -INFINITY, 3.4e38f, 1e-45f, 1.0f, NAN};
      std::memcpy(at, &corners[random.Below(6)], 4);
    }
  }
  return bytes;
}

template <typename T>
bool IsNaN(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return std::isnan(value);
}

bool IsNaN(DataType type, const std::byte* at) {
  uint16_t half;
  std::memcpy(&half, at, 2);
  switch (type) {
    case DataType::kFloat16:
      return (half & 0x7FFF) > 0x7C00;
    case DataType::kBFloat16:
      return (half & 0x7FFF) > 0x7F80;
    case DataType::kFloat32:
    case DataType::kComplex64:
      return IsNaN<float>(at);
    case DataType::kFloat64:
    case DataType::kComplex128:
      return IsNaN<double>(at);
    default:
      return false;
  }
}

void ExpectSame(DataType type, const std::vector<std::byte>& ours,
                const std::vector<std::byte>& reference, const std::string& what) {
  size_t part = SizeOf(type);
  if (type == DataType::kComplex64 || type == DataType::kComplex128) part /= 2;
  for (size_t at = 0; at + part <= reference.size(); at += part) {
    if (std::memcmp(&ours[at], &reference[at], part) == 0) continue;
    if (IsNaN(type, &ours[at]) && IsNaN(type, &reference[at])) continue;
    ADD_FAILURE() << what << ": element " << at / SizeOf(type) << " differs";
    return;
  }
}

class KernelTest : public testing::TestWithParam<KernelSet> {
 protected:
  void SetUp() override {
    if (!Available(GetParam())) GTEST_SKIP() << "this CPU lacks the instructions";
  }
};

TEST_P(KernelTest, AgreesWithTheReferenceForEveryTypeOperatorAndLength) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    for (int o = 0; o < kReduceOpCount; ++o) {
      const DataType type = static_cast<DataType>(t);
      const ReduceOp op = static_cast<ReduceOp>(o);
      net::ReduceFn kernel = ReduceFor(type, op, GetParam());
      net::ReduceFn reference = ReduceFor(type, op, KernelSet::kReference);
      ASSERT_EQ(kernel != nullptr, Supports(op, type)) << ToString(type) << " " << ToString(op);
      if (kernel == nullptr) continue;
      for (size_t count : {0, 1, 7, 31, 64, 65, 1000, 4099}) {
        const auto a = Operand(type, count, 1), b = Operand(type, count, 2);
        std::vector<std::byte> want(a.size()), got(a.size());
        reference(want.data(), a.data(), b.data(), want.size());
        kernel(got.data(), a.data(), b.data(), got.size());
        const std::string what = std::string(ToString(type)) + " " + ToString(op);
        ExpectSame(type, got, want, what);
        std::vector<std::byte> onto_a = a, onto_b = b;
        kernel(onto_a.data(), onto_a.data(), b.data(), got.size());
        ExpectSame(type, onto_a, want, what + ", out is local");
        kernel(onto_b.data(), a.data(), onto_b.data(), got.size());
        ExpectSame(type, onto_b, want, what + ", out is incoming");
      }
    }
  }
}

TEST_P(KernelTest, AveragesAsTheReference) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    const DataType type = static_cast<DataType>(t);
    ScaleFn kernel = ScaleFor(type, GetParam());
    ASSERT_EQ(kernel != nullptr, Supports(ReduceOp::kAverage, type));
    if (kernel == nullptr) continue;
    for (int divisor : {1, 3, 4, 1000}) {
      auto want = Operand(type, 1001, 3), got = want;
      ScaleFor(type, KernelSet::kReference)(want.data(), want.size(), divisor);
      kernel(got.data(), got.size(), divisor);
      ExpectSame(type, got, want, std::string(ToString(type)) + " average");
    }
  }
}

// Several operands at once: 16-bit floats are added up and divided in float32 and rounded once, all
// others give the bits of pairs; also where the result goes to one of the operands.
TEST_P(KernelTest, ReducesSeveralOperandsAsTheReference) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    const DataType type = static_cast<DataType>(t);
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct, ReduceOp::kMax}) {
      if (!Supports(op, type)) continue;
      for (size_t count : {size_t{1}, size_t{63}, size_t{64}, size_t{3000}}) {
        for (size_t operands : {size_t{2}, size_t{3}, size_t{9}}) {
          std::vector<std::vector<std::byte>> values;
          std::vector<const std::byte*> from;
          for (size_t o = 0; o < operands; ++o) values.push_back(Operand(type, count, o));
          for (const auto& value : values) from.push_back(value.data());
          const size_t bytes = count * SizeOf(type);
          const ReduceAllFn all = ReduceAllFor(type, op, GetParam());
          const int divisor = all == nullptr ? 1 : static_cast<int>(operands);
          std::vector<std::byte> expected(bytes), ours(bytes);
          ReduceAll(ReduceFor(type, op, KernelSet::kReference),
                    ReduceAllFor(type, op, KernelSet::kReference), expected.data(), from, bytes,
                    divisor);
          const auto reduce = [&](std::byte* out) {
            ReduceAll(ReduceFor(type, op, GetParam()), all, out, from, bytes, divisor);
          };
          reduce(ours.data());
          ExpectSame(type, ours, expected, std::string(ToString(type)) + " " + ToString(op));
          reduce(values[operands / 2].data());
          ExpectSame(type, values[operands / 2], expected, "in place");
        }
      }
    }
  }
}

TEST_P(KernelTest, StreamsTheSameBitsWhereverTheResultLies) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    const DataType type = static_cast<DataType>(t);
    for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
      if (!Supports(op, type)) continue;
      for (size_t count : {size_t{1}, size_t{77}, size_t{5000}}) {
        const auto left = Operand(type, count, 1), right = Operand(type, count, 2);
        for (size_t shift : {0, 16, 4}) {
          const size_t bytes = count * SizeOf(type);
          std::vector<std::byte> expected(bytes), memory(bytes + 128, std::byte{0x5A});
          ReduceFor(type, op, GetParam())(expected.data(), left.data(), right.data(), bytes);
          StreamingReduceFor(type, op, GetParam())(memory.data() + shift, left.data(), right.data(),
                                                   bytes);
          const std::vector<std::byte> ours(memory.begin() + static_cast<ptrdiff_t>(shift),
                                            memory.begin() + static_cast<ptrdiff_t>(shift + bytes));
          ExpectSame(type, ours, expected, std::string("streamed ") + ToString(type));
          EXPECT_EQ(memory[bytes + shift], std::byte{0x5A});
        }
      }
    }
  }
}

TEST(ReduceTest, SumsOfSixteenBitFloatsAreRoundedOnce) {
  // 256, and ones, each of which alone is half of the last place.
  const uint16_t large = 0x4380, one = 0x3F80;
  const std::byte* from[5];
  for (const std::byte*& operand : from) operand = reinterpret_cast<const std::byte*>(&one);
  from[0] = reinterpret_cast<const std::byte*>(&large);
  uint16_t sum = 0;
  ReduceAll(ReduceFor(DataType::kBFloat16, ReduceOp::kSum),
            ReduceAllFor(DataType::kBFloat16, ReduceOp::kSum), reinterpret_cast<std::byte*>(&sum),
            from, 2);
  EXPECT_EQ(sum, 0x4382);  // 260
  // A third of 256 + 4 + 1 is 87; a third of 260, as the sum would be rounded to, is 86.5.
  const uint16_t four = 0x4080;
  from[1] = reinterpret_cast<const std::byte*>(&four);
  ReduceAll(ReduceFor(DataType::kBFloat16, ReduceOp::kAverage),
            ReduceAllFor(DataType::kBFloat16, ReduceOp::kAverage),
            reinterpret_cast<std::byte*>(&sum), absl::MakeSpan(from).first(3), 2, 3);
  EXPECT_EQ(sum, 0x42AE);
  EXPECT_EQ(ReduceAllFor(DataType::kFloat32, ReduceOp::kSum), nullptr);
}

TEST_P(KernelTest, AcceptsMemoryOfAnyAlignment) {
  const auto a = Operand(DataType::kFloat32, 300, 1), b = Operand(DataType::kFloat32, 300, 2);
  std::vector<std::byte> want(1024), got(1025);
  ReduceFor(DataType::kFloat32, ReduceOp::kSum, KernelSet::kReference)(want.data(), a.data() + 1,
                                                                       b.data() + 3, 1024);
  ReduceFor(DataType::kFloat32, ReduceOp::kSum, GetParam())(got.data() + 1, a.data() + 1,
                                                            b.data() + 3, 1024);
  got.erase(got.begin());
  ExpectSame(DataType::kFloat32, got, want, "unaligned");
}

// All 2^32 pairs are too many; every 16-bit value against a few partners is not.
TEST_P(KernelTest, RoundsEveryHalfToNearestEven) {
  for (DataType type : {DataType::kFloat16, DataType::kBFloat16}) {
    std::vector<uint16_t> a(65536), b(65536), want(65536), got(65536);
    for (uint32_t partner : {0x0001u, 0x1400u, 0x3C01u, 0x3F81u, 0xBC00u, 0x7BFFu}) {
      for (uint32_t i = 0; i < 65536; ++i) a[i] = static_cast<uint16_t>(i), b[i] = partner;
      auto bytes = [](std::vector<uint16_t>& v) { return reinterpret_cast<std::byte*>(v.data()); };
      for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProduct}) {
        ReduceFor(type, op, KernelSet::kReference)(bytes(want), bytes(a), bytes(b), 131072);
        ReduceFor(type, op, GetParam())(bytes(got), bytes(a), bytes(b), 131072);
        for (uint32_t i = 0; i < 65536; ++i) {
          if (want[i] == got[i]) continue;
          ASSERT_TRUE(IsNaN(type, reinterpret_cast<std::byte*>(&want[i])) &&
                      IsNaN(type, reinterpret_cast<std::byte*>(&got[i])))
              << ToString(type) << " " << ToString(op) << " " << i << " with " << partner;
        }
      }
    }
  }
}

std::string SetName(const testing::TestParamInfo<KernelSet>& set) {
  constexpr const char* kNames[] = {"Reference", "Baseline", "Avx2", "Avx512"};
  return kNames[static_cast<int>(set.param)];
}

INSTANTIATE_TEST_SUITE_P(Sets, KernelTest,
                         testing::Values(KernelSet::kBaseline, KernelSet::kAvx2,
                                         KernelSet::kAvx512),
                         SetName);

TEST(DataTypeTest, NamesReadBackAndErrorsNameTheNearest) {
  for (int t = 0; t < kDataTypeCount; ++t) {
    EXPECT_EQ(*ParseDataType(ToString(static_cast<DataType>(t))), static_cast<DataType>(t));
  }
  for (int o = 0; o < kReduceOpCount; ++o) {
    EXPECT_EQ(*ParseReduceOp(ToString(static_cast<ReduceOp>(o))), static_cast<ReduceOp>(o));
  }
  EXPECT_EQ(ParseDataType("doubel").status().message(),
            "no number type \"doubel\"; did you mean \"double\"?");
}

TEST(ReduceTest, KeepsNaNInMinAndMax) {
  const float nan = NAN, one = 1;
  for (ReduceOp op : {ReduceOp::kMin, ReduceOp::kMax}) {
    for (auto [a, b] : {std::pair{&nan, &one}, std::pair{&one, &nan}}) {
      float out = 0;
      ReduceFor(DataType::kFloat32, op)(reinterpret_cast<std::byte*>(&out),
                                        reinterpret_cast<const std::byte*>(a),
                                        reinterpret_cast<const std::byte*>(b), 4);
      EXPECT_TRUE(std::isnan(out));
    }
  }
}

}  // namespace
}  // namespace weft::collectives
