// Each loop of decode.h, on every instruction set that this CPU has, against the same written
// plainly in double.
#include "trainer/kernels/decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"

namespace weft::train::kernels {
namespace {

template <typename T>
class DecodeTest : public ::testing::Test {
 protected:
  // Values that T holds exactly.
  std::vector<T> Make(int64_t count) {
    std::vector<T> values(static_cast<size_t>(count));
    for (T& value : values) Store(static_cast<float>(random_.Uniform() * 2 - 1), value);
    return values;
  }
  // Half a unit in the last place of T, and a little for sums in fp32.
  static void ExpectNear(float actual, double expected, double size, const std::string& what) {
    const double last = std::is_same_v<T, float> ? 0 : std::is_same_v<T, Bf16> ? 1.0 / 256 : 1e-3;
    EXPECT_NEAR(static_cast<double>(actual), expected, last * std::abs(expected) + 2e-6 * size)
        << what;
  }
  Random random_{7, 0};
};
using Types = ::testing::Types<float, Bf16, Fp16>;
TYPED_TEST_SUITE(DecodeTest, Types);

// Sizes around the tiles: vectors of 1 to 16 lanes with a rest, one row and odd numbers of rows,
// rows of which a block holds many, and one that is longer than a block.
TYPED_TEST(DecodeTest, ProductsAreTheReferences) {
  using T = TypeParam;
  for (const DecodeTable& table : DecodeTables()) {
    for (auto [outputs, inputs] : {std::pair<int64_t, int64_t>{1, 1},
                                   {3, 5},
                                   {7, 33},
                                   {50, 64},
                                   {131, 100},
                                   {5, 9001},
                                   {1000, 48}}) {
      const std::vector<T> weight = this->Make(outputs * inputs);
      const std::vector<T> bias = this->Make(outputs);
      for (int64_t vectors : {1, 2, 3, 4, 5, 8, 9}) {
        const std::vector<T> x = this->Make(vectors * inputs);
        std::vector<T> y(static_cast<size_t>(vectors * outputs));
        std::vector<float> wide(y.size());
        table.Of<T>().multiply(vectors, outputs, inputs, x.data(), weight.data(), bias.data(),
                               y.data());
        table.Of<T>().multiply_fp32(vectors, outputs, inputs, x.data(), weight.data(), wide.data());
        for (int64_t v = 0; v < vectors; ++v) {
          for (int64_t o = 0; o < outputs; ++o) {
            double sum = 0;
            for (int64_t i = 0; i < inputs; ++i) {
              sum += static_cast<double>(Load(x[static_cast<size_t>(v * inputs + i)])) *
                     static_cast<double>(Load(weight[static_cast<size_t>(o * inputs + i)]));
            }
            const size_t at = static_cast<size_t>(v * outputs + o);
            const double size = 1 + static_cast<double>(inputs) / 100;
            const std::string what = std::string(table.instruction_set) + " " +
                                     std::to_string(vectors) + " x " + std::to_string(outputs) +
                                     " x " + std::to_string(inputs);
            EXPECT_NEAR(static_cast<double>(wide[at]), sum, 2e-6 * size) << what;
            sum += static_cast<double>(Load(bias[static_cast<size_t>(o)]));
            this->ExpectNear(Load(y[at]), sum, size, what);
          }
        }
      }
    }
  }
}

// What a batch of prompts gives may not depend on who is in it.
TYPED_TEST(DecodeTest, AVectorsProductDoesNotDependOnTheVectorsBesideIt) {
  using T = TypeParam;
  constexpr int64_t kOutputs = 301, kInputs = 77, kMost = 9;
  const std::vector<T> weight = this->Make(kOutputs * kInputs);
  const std::vector<T> x = this->Make(kMost * kInputs);
  for (const DecodeTable& table : DecodeTables()) {
    std::vector<float> together(kMost * kOutputs), alone(kOutputs);
    table.Of<T>().multiply_fp32(kMost, kOutputs, kInputs, x.data(), weight.data(), together.data());
    for (int64_t v = 0; v < kMost; ++v) {
      table.Of<T>().multiply_fp32(1, kOutputs, kInputs, x.data() + v * kInputs, weight.data(),
                                  alone.data());
      EXPECT_EQ(
          std::memcmp(alone.data(), together.data() + v * kOutputs, alone.size() * sizeof(float)),
          0)
          << table.instruction_set << " vector " << v;
    }
  }
}

// Sequences of unequal lengths, grouped heads, widths with and without a rest.
TYPED_TEST(DecodeTest, AttentionIsTheReference) {
  using T = TypeParam;
  for (const DecodeTable& table : DecodeTables()) {
    for (int64_t width : {6, 16, 40, 64, 128}) {
      constexpr int64_t kHeads = 6, kKvHeads = 2, kRoom = 70;
      const std::vector<int64_t> counts = {1, 70, 33};
      const int64_t stride = kRoom * width;
      const std::vector<T> query = this->Make(3 * kHeads * width);
      const std::vector<T> keys = this->Make(3 * kKvHeads * stride);
      const std::vector<T> values = this->Make(3 * kKvHeads * stride);
      std::vector<T> out(query.size());
      std::vector<CachedAttention<T>> what;
      for (size_t s = 0; s < counts.size(); ++s) {
        const int64_t cache = static_cast<int64_t>(s) * kKvHeads * stride;
        const int64_t row = static_cast<int64_t>(s) * kHeads * width;
        what.push_back({query.data() + row, keys.data() + cache, values.data() + cache, stride,
                        counts[s], out.data() + row});
      }
      table.Of<T>().attend(3, kHeads, kKvHeads, width, what.data());
      for (size_t s = 0; s < counts.size(); ++s) {
        for (int64_t head = 0; head < kHeads; ++head) {
          const int64_t from = head / (kHeads / kKvHeads) * stride;
          std::vector<double> weights;
          double sum = 0;
          for (int64_t i = 0; i < counts[s]; ++i) {
            double score = 0;
            for (int64_t j = 0; j < width; ++j) {
              score += static_cast<double>(Load(what[s].query[head * width + j])) *
                       static_cast<double>(Load(what[s].keys[from + i * width + j]));
            }
            weights.push_back(std::exp(score / std::sqrt(static_cast<double>(width))));
            sum += weights.back();
          }
          for (int64_t j = 0; j < width; ++j) {
            double expected = 0;
            for (int64_t i = 0; i < counts[s]; ++i) {
              expected += weights[static_cast<size_t>(i)] / sum *
                          static_cast<double>(Load(what[s].values[from + i * width + j]));
            }
            this->ExpectNear(Load(what[s].out[head * width + j]), expected, 1,
                             std::string(table.instruction_set) + " width " +
                                 std::to_string(width) + " sequence " + std::to_string(s));
          }
        }
      }
    }
  }
}

TEST(DecodeReadTest, EveryByteCounts) {
  for (const DecodeTable& table : DecodeTables()) {
    for (int64_t bytes : {1, 63, 1000, 100'001}) {
      std::vector<std::byte> data(static_cast<size_t>(bytes), std::byte{0});
      EXPECT_EQ(table.read(bytes, data.data()), 0U);
      for (int64_t at : {int64_t{0}, bytes / 2, bytes - 1}) {
        data[static_cast<size_t>(at)] = std::byte{1};
        EXPECT_NE(table.read(bytes, data.data()), 0U) << table.instruction_set << " byte " << at;
        data[static_cast<size_t>(at)] = std::byte{0};
      }
    }
  }
}

}  // namespace
}  // namespace weft::train::kernels
