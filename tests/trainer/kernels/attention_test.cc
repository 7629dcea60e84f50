// The loops of attention.h, on every instruction set that this CPU has, against the definition
// written plainly in double.
#include "trainer/kernels/attention.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/random.h"
#include "tests/trainer/kernels/emulated.h"

namespace weft::train::kernels {
namespace {

// [batch, heads, rows, width], some elements apart; a row of all heads lies together, as in
// training.
template <typename T>
struct Tensor {
  Tensor(int64_t batch, int64_t heads_in, int64_t rows, int64_t width_in, Random* random)
      : heads(heads_in),
        width(width_in),
        stride(heads_in * width_in + 5),
        length(rows),
        values(static_cast<size_t>(batch * rows * stride)) {
    for (T& value : values) {
      Store(random == nullptr ? 7 : static_cast<float>(random->Uniform() * 4 - 2), value);
    }
  }
  size_t Index(int64_t sample, int64_t head, int64_t row, int64_t i) const {
    return static_cast<size_t>((sample * length + row) * stride + head * width + i);
  }
  double At(int64_t sample, int64_t head, int64_t row, int64_t i) const {
    return Load(values[Index(sample, head, row, i)]);
  }
  HeadRows<T> rows() { return {values.data(), length * stride, width, stride}; }
  HeadRows<const T> rows() const { return {values.data(), length * stride, width, stride}; }

  int64_t heads, width, stride, length;
  std::vector<T> values;
};

template <typename T>
struct Case {
  Case(const AttentionShape& of, uint64_t seed)
      : shape(of),
        random(seed),
        query(of.batch, of.heads, of.queries, of.width, &random),
        key(of.batch, of.kv_heads, of.keys, of.width, &random),
        value(of.batch, of.kv_heads, of.keys, of.width, &random),
        dout(of.batch, of.heads, of.queries, of.width, &random),
        out(of.batch, of.heads, of.queries, of.width, nullptr),
        dquery(of.batch, of.heads, of.queries, of.width, nullptr),
        dkey(of.batch, of.kv_heads, of.keys, of.width, nullptr),
        dvalue(of.batch, of.kv_heads, of.keys, of.width, nullptr),
        logsumexp(static_cast<size_t>(of.batch * of.heads * of.queries), 7) {}

  AttentionInputRows<T> inputs() const {
    return {std::as_const(query).rows(), std::as_const(key).rows(), std::as_const(value).rows()};
  }
  void Run(const AttentionKernels<T>& kernels) {
    kernels.forward(shape, inputs(), out.rows(), logsumexp.data());
    kernels.backward(shape, std::as_const(dout).rows(), inputs(), std::as_const(out).rows(),
                     logsumexp.data(), dquery.rows(), dkey.rows(), dvalue.rows());
  }
  bool Sees(int64_t i, int64_t j) const {
    const int64_t distance = shape.distance + i - j;
    return distance >= 0 && (shape.window == 0 || distance < shape.window);
  }

  AttentionShape shape;
  Random random;
  Tensor<T> query, key, value, dout, out, dquery, dkey, dvalue;
  std::vector<float> logsumexp;
};

// The largest difference between the results of `c` and the definition, relative to the largest
// value of each.
template <typename T>
double Error(const Case<T>& c) {
  const AttentionShape& s = c.shape;
  const auto count = static_cast<size_t>(s.keys * s.width);
  double worst = 0;
  auto compare = [&worst](double got, double expected) {
    worst = std::max(worst, std::abs(got - expected) / (1 + std::abs(expected)));
  };
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t g = 0; g < s.kv_heads; ++g) {
      std::vector<double> dkey(count), dvalue(count);
      const int64_t group = s.heads / s.kv_heads;
      for (int64_t h = g * group; h < (g + 1) * group; ++h) {
        for (int64_t i = 0; i < s.queries; ++i) {
          std::vector<double> p(static_cast<size_t>(s.keys)), dp(p.size());
          double top = -std::numeric_limits<double>::infinity(), sum = 0;
          for (int64_t j = 0; j < s.keys; ++j) {
            double score = 0;
            for (int64_t e = 0; e < s.width; ++e)
              score += c.query.At(b, h, i, e) * c.key.At(b, g, j, e);
            p[static_cast<size_t>(j)] = score * s.scale;
            if (c.Sees(i, j)) top = std::max(top, score * s.scale);
          }
          for (int64_t j = 0; j < s.keys; ++j) {
            double& one = p[static_cast<size_t>(j)];
            one = c.Sees(i, j) ? std::exp(one - top) : 0;
            sum += one;
          }
          const float got = c.logsumexp[static_cast<size_t>((b * s.heads + h) * s.queries + i)];
          if (sum == 0) {
            EXPECT_EQ(got, -std::numeric_limits<float>::infinity());
          } else {
            compare(got, top + std::log(sum));
          }
          double delta = 0;
          for (int64_t e = 0; e < s.width; ++e) {
            double out = 0;
            for (int64_t j = 0; j < s.keys; ++j) {
              if (sum > 0) out += p[static_cast<size_t>(j)] / sum * c.value.At(b, g, j, e);
            }
            compare(c.out.At(b, h, i, e), out);
            delta += out * c.dout.At(b, h, i, e);
          }
          std::vector<double> dquery(static_cast<size_t>(s.width));
          for (int64_t j = 0; j < s.keys; ++j) {
            if (p[static_cast<size_t>(j)] == 0) continue;
            const double probability = p[static_cast<size_t>(j)] / sum;
            double dprobability = 0;
            for (int64_t e = 0; e < s.width; ++e) {
              dprobability += c.dout.At(b, h, i, e) * c.value.At(b, g, j, e);
            }
            const double dscore = probability * (dprobability - delta) * s.scale;
            for (int64_t e = 0; e < s.width; ++e) {
              const auto at = static_cast<size_t>(j * s.width + e);
              dvalue[at] += probability * c.dout.At(b, h, i, e);
              dkey[at] += dscore * c.query.At(b, h, i, e);
              dquery[static_cast<size_t>(e)] += dscore * c.key.At(b, g, j, e);
            }
          }
          for (int64_t e = 0; e < s.width; ++e) {
            compare(c.dquery.At(b, h, i, e), dquery[static_cast<size_t>(e)]);
          }
        }
      }
      for (int64_t j = 0; j < s.keys; ++j) {
        for (int64_t e = 0; e < s.width; ++e) {
          const auto at = static_cast<size_t>(j * s.width + e);
          compare(c.dkey.At(b, g, j, e), dkey[at]);
          compare(c.dvalue.At(b, g, j, e), dvalue[at]);
        }
      }
    }
  }
  return worst;
}

const AttentionShape kShapes[] = {
    {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 1, .keys = 1, .width = 8},
    {.batch = 2, .heads = 3, .kv_heads = 3, .queries = 70, .keys = 70, .width = 20},
    {.batch = 2, .heads = 4, .kv_heads = 2, .queries = 130, .keys = 130, .width = 16, .window = 9},
    {.batch = 1, .heads = 4, .kv_heads = 1, .queries = 65, .keys = 65, .width = 64, .window = 1},
    // More keys than a tile has.
    {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 600, .keys = 600, .width = 24},
    {.batch = 1,
     .heads = 2,
     .kv_heads = 1,
     .queries = 40,
     .keys = 1100,
     .width = 16,
     .distance = 1070},
    // Later queries over earlier keys, in part beyond the window, or before the first key.
    {.batch = 2, .heads = 2, .kv_heads = 2, .queries = 33, .keys = 50, .width = 8, .distance = 60},
    {.batch = 1,
     .heads = 1,
     .kv_heads = 1,
     .queries = 50,
     .keys = 30,
     .width = 8,
     .distance = 5,
     .window = 12},
    {.batch = 1, .heads = 1, .kv_heads = 1, .queries = 70, .keys = 20, .width = 8, .distance = -66},
};

template <typename T>
void ExpectRight(double tolerance) {
  for (const AttentionTable& table : TestedAttentionTables()) {
    for (AttentionShape shape : kShapes) {
      shape.scale = 1 / std::sqrt(static_cast<float>(shape.width));
      Case<T> c(shape, 5);
      c.Run(table.Of<T>());
      EXPECT_LT(Error(c), tolerance)
          << table.instruction_set << ", " << shape.queries << " queries, " << shape.keys
          << " keys, window " << shape.window << ", distance " << shape.distance;
    }
  }
}

TEST(Attention, IsItsDefinition) { ExpectRight<float>(2e-5); }

// Probabilities and results are rounded to eight bits.
TEST(Attention, IsItsDefinitionInBf16) { ExpectRight<Bf16>(4e-2); }

// Whatever the number of threads, to the bit; and nothing between the rows is written.
TEST(Attention, DoesNotDependOnThreads) {
  const int threads = omp_get_max_threads();
  const AttentionShape shape{.batch = 1,
                             .heads = 3,
                             .kv_heads = 3,
                             .queries = 200,
                             .keys = 200,
                             .width = 32,
                             .scale = 0.2F};
  std::vector<Case<float>> cases;
  for (int count : {1, 2, 3, 5}) {  // with five, threads share the products of a tile
    omp_set_num_threads(count);
    cases.emplace_back(shape, 11).Run(Attention().f32);
  }
  omp_set_num_threads(threads);
  for (const Case<float>& c : cases) {
    EXPECT_EQ(c.out.values, cases[0].out.values);
    EXPECT_EQ(c.logsumexp, cases[0].logsumexp);
    EXPECT_EQ(c.dquery.values, cases[0].dquery.values);
    EXPECT_EQ(c.dkey.values, cases[0].dkey.values);
    EXPECT_EQ(c.dvalue.values, cases[0].dvalue.values);
  }
  for (int64_t i = 0; i < 5; ++i) {
    EXPECT_EQ(cases[0].out.values[static_cast<size_t>(3 * 32 + i)], 7);
    EXPECT_EQ(cases[0].dkey.values[static_cast<size_t>(3 * 32 + i)], 7);
  }
}

}  // namespace
}  // namespace weft::train::kernels
