// The products of gemm.h, on every instruction set that this CPU has, against the same written
// plainly in double.
#include "trainer/kernels/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "base/random.h"

namespace weft::train::kernels {
namespace {

// [rows, columns] with some elements more between rows than there are columns.
template <typename T>
struct Matrix {
  Matrix(int64_t rows, int64_t columns, bool is_transposed, Random& random)
      : transposed(is_transposed),
        stride((is_transposed ? rows : columns) + 3),
        values(static_cast<size_t>((is_transposed ? columns : rows) * stride)) {
    for (T& value : values) Store(static_cast<float>(random.Uniform() * 2 - 1), value);
  }
  size_t Index(int64_t row, int64_t column) const {
    return static_cast<size_t>(transposed ? column * stride + row : row * stride + column);
  }
  double At(int64_t row, int64_t column) const { return Load(values[Index(row, column)]); }
  GemmOperand<T> operand() const { return {values.data(), stride, transposed}; }

  bool transposed;
  int64_t stride;
  std::vector<T> values;
};

struct Shape {
  int64_t m, n, k;
  bool a_transposed, b_transposed;
};

class GemmTest : public ::testing::TestWithParam<Shape> {
 protected:
  enum class What { kOverwrite, kAdd, kBias };

  template <typename T, typename C, typename Multiply>
  void Expect(Multiply multiply, What what, const std::string& name) {
    const Shape shape = GetParam();
    const Matrix<T> a(shape.m, shape.k, shape.a_transposed, random_);
    const Matrix<T> b(shape.k, shape.n, shape.b_transposed, random_);
    const Matrix<T> bias(1, shape.n, false, random_);
    const Matrix<C> before(shape.m, shape.n, false, random_);
    Matrix<C> c = before;
    multiply({shape.m, shape.n, shape.k, a.operand(), b.operand(), c.values.data(), c.stride,
              what == What::kAdd, what == What::kBias ? bias.values.data() : nullptr});
    // A half unit in the last place of the result, and sums in fp32.
    const double last = std::is_same_v<C, Bf16> ? 1.0 / 256 : 0;
    const double sums = 1e-7 * static_cast<double>(shape.k);
    for (int64_t row = 0; row < shape.m; ++row) {
      for (int64_t column = 0; column < c.stride; ++column) {
        if (column >= shape.n) {  // between the rows nothing is written
          ASSERT_EQ(c.At(row, column), before.At(row, column)) << name;
          continue;
        }
        double expected = what == What::kAdd    ? before.At(row, column)
                          : what == What::kBias ? bias.At(0, column)
                                                : 0;
        for (int64_t i = 0; i < shape.k; ++i) expected += a.At(row, i) * b.At(i, column);
        ASSERT_NEAR(c.At(row, column), expected, last * std::abs(expected) + sums + 1e-6)
            << name << ", row " << row << ", column " << column;
      }
    }
  }
  Random random_{11, 0};
};

TEST_P(GemmTest, ProductsAreTheReferences) {
  for (const GemmTable& table : GemmTables()) {
    const std::string name = table.instruction_set;
    for (What what : {What::kOverwrite, What::kAdd, What::kBias}) {
      Expect<float, float>(table.f32, what, name + " fp32");
      Expect<Bf16, Bf16>(table.bf16, what, name + " bf16");
      Expect<Bf16, float>(table.bf16_to_fp32, what, name + " bf16 to fp32");
    }
  }
}

// Every rest of a tile, several passes along the common dimension, and every transpose.
INSTANTIATE_TEST_SUITE_P(
    Shapes, GemmTest,
    ::testing::Values(Shape{1, 1, 1, false, false}, Shape{3, 5, 7, true, true},
                      Shape{12, 32, 16, false, false}, Shape{12, 32, 17, false, true},
                      Shape{25, 67, 33, true, false}, Shape{37, 45, 801, false, true},
                      Shape{24, 64, 1601, true, false}, Shape{13, 3100, 9, false, false},
                      Shape{1800, 35, 10, true, true}));

// To the bit: who runs on other numbers of cores gets the same losses.
TEST(GemmThreadsTest, ResultsDoNotDependOnTheNumberOfThreads) {
  Random random(5, 0);
  const Matrix<float> a(300, 500, false, random), b(500, 200, true, random);
  const int before = omp_get_max_threads();
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    std::vector<float> c(300 * 200);
    Gemm().f32({300, 200, 500, a.operand(), b.operand(), c.data(), 200, false, nullptr});
    results.push_back(c);
  }
  omp_set_num_threads(before);
  for (const std::vector<float>& c : results) {
    EXPECT_EQ(std::memcmp(c.data(), results[0].data(), c.size() * sizeof(float)), 0);
  }
}

TEST(GemmPeakTest, RegistersMultiplyAtSomeRate) {
  for (const GemmTable& table : GemmTables()) {
    EXPECT_GT(table.register_peak(/*bf16=*/false, 0.001), 1e8) << table.instruction_set;
    EXPECT_GT(table.register_peak(/*bf16=*/true, 0.001), 1e8) << table.instruction_set;
  }
}

}  // namespace
}  // namespace weft::train::kernels
