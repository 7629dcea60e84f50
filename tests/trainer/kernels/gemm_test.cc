// The products of gemm.h, on every instruction set that this CPU has, against the same written
// plainly in double.
#include "trainer/kernels/gemm.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"
#include "tests/trainer/kernels/emulated.h"
#include "trainer/kernels/instruction_sets.h"
#include "trainer/kernels/kernels.h"

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
              what == What::kAdd, what == What::kBias ? bias.values.data() : nullptr,
              GemmEpilogue::kNone, nullptr, 0, nullptr, 0});
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
  for (const GemmTable& table : TestedGemmTables()) {
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
                      Shape{1800, 35, 10, true, true}, Shape{7, 6400, 5, false, true},
                      Shape{5, 6250, 390, false, false}));

template <typename T>
using Multiplication = void (*)(const GemmProblem<T, T>& problem);

// Each epilogue beside the product alone and then the loop of kernels.h that it stands for.
template <typename T>
class Epilogues {
 public:
  Epilogues(const Shape& shape, const Multiplication<T>& multiply)
      : shape_(shape),
        multiply_(multiply),
        a_(shape.m, shape.k, shape.a_transposed, random_),
        b_(shape.k, shape.n, shape.b_transposed, random_),
        bias_(1, shape.n, false, random_) {}

  void ExpectLoops(double tolerance, const std::string& name) {
    const int64_t m = shape_.m, n = shape_.n;
    const Tight product = Product(GemmEpilogue::kNone, Tight(Size(m * n)), n, {}, 0, nullptr, 0);
    const Tight other = Draw(m * n), pairs = Draw(2 * m * n);

    Tight expected(Size(m * n));
    for (size_t i = 0; i < expected.size(); ++i) {
      Store(Load(product[i]) + Load(other[i]), expected[i]);
    }
    Expect(Product(GemmEpilogue::kAddOther, Tight(Size(m * n)), n, other, n, nullptr, 0), expected,
           tolerance, name + " added");

    Kernels().Of<T>().gelu_forward(m * n, product.data(), expected.data());
    Tight out(Size(m * n));
    Expect(Product(GemmEpilogue::kGelu, Tight(Size(m * n)), n, {}, 0, out.data(), n), product,
           tolerance, name + " before gelu");
    Expect(out, expected, tolerance, name + " gelu");

    Kernels().Of<T>().gelu_backward(m * n, product.data(), other.data(), expected.data());
    Expect(Product(GemmEpilogue::kGeluGradient, Tight(Size(m * n)), n, other, n, nullptr, 0),
           expected, tolerance, name + " gelu's gradient");

    Tight both(Size(2 * m * n));
    Kernels().Of<T>().swiglu_backward(m, n, product.data(), pairs.data(), both.data());
    Expect(Product(GemmEpilogue::kSwigluGradient, Tight(Size(2 * m * n)), 2 * n, pairs, 2 * n,
                   nullptr, 0),
           both, tolerance, name + " swiglu's gradient");

    if (n % 2 != 0) return;
    Tight half(Size(m * n / 2)), half_out(Size(m * n / 2));
    Kernels().Of<T>().swiglu_forward(m, n / 2, product.data(), half.data());
    Expect(Product(GemmEpilogue::kSwiglu, Tight(Size(m * n)), n, {}, 0, half_out.data(), n / 2),
           product, tolerance, name + " before swiglu");
    Expect(half_out, half, tolerance, name + " swiglu");
  }

 private:
  using Tight = std::vector<T>;  // rows without anything between
  static size_t Size(int64_t count) { return static_cast<size_t>(count); }
  Tight Draw(int64_t count) {
    Tight values(Size(count));
    for (T& value : values) Store(static_cast<float>(random_.Uniform() * 2 - 1), value);
    return values;
  }
  Tight Product(GemmEpilogue epilogue, Tight c, int64_t stride, const Tight& other,
                int64_t other_stride, T* out, int64_t out_stride) {
    multiply_({shape_.m, shape_.n, shape_.k, a_.operand(), b_.operand(), c.data(), stride, false,
               bias_.values.data(), epilogue, other.data(), other_stride, out, out_stride});
    return c;
  }
  static void Expect(const Tight& got, const Tight& expected, double tolerance,
                     const std::string& name) {
    ASSERT_EQ(got.size(), expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      ASSERT_NEAR(Load(got[i]), Load(expected[i]), tolerance * (1 + std::abs(Load(expected[i]))))
          << name << ", element " << i;
    }
  }

  const Shape shape_;
  const Multiplication<T> multiply_;
  Random random_{13, 0};
  const Matrix<T> a_, b_, bias_;
};

TEST_P(GemmTest, EpiloguesAreLoopsOverTheProduct) {
  for (const GemmTable& table : TestedGemmTables()) {
    const std::string name = table.instruction_set;
    Epilogues<float>(GetParam(), table.f32).ExpectLoops(1e-5, name + " fp32");
    // The sums of a product are the same; what is rounded to eight bits may fall to either side.
    Epilogues<Bf16>(GetParam(), table.bf16).ExpectLoops(1.0 / 128, name + " bf16");
  }
}

// A product whose b is packed beforehand, beside the same that packs b itself.
template <typename T, typename C>
void ExpectSameBitsPacked(const GemmTable& table, void (*multiply)(const GemmProblem<T, C>&),
                          const Shape& shape, GemmEpilogue epilogue, const std::string& name) {
  Random random(17, 0);
  const Matrix<T> a(shape.m, shape.k, shape.a_transposed, random);
  Matrix<T> b(shape.k, shape.n, shape.b_transposed, random);
  const Matrix<C> other(shape.m, shape.n, false, random);
  Matrix<C> c(shape.m, shape.n, false, random), out(shape.m, shape.n, false, random);
  GemmProblem<T, C> problem{.m = shape.m, .n = shape.n, .k = shape.k};
  problem.a = a.operand();
  problem.b = b.operand();
  problem.c = c.values.data();
  problem.stride = c.stride;
  problem.epilogue = epilogue;
  problem.other = other.values.data();
  problem.other_stride = other.stride;
  problem.out = out.values.data();
  problem.out_stride = out.stride;
  multiply(problem);
  const std::vector<C> expected = c.values, expected_out = out.values;

  constexpr bool kIsBf16 = std::is_same_v<T, Bf16>;
  const int64_t split = GemmSplit(epilogue, shape.n);
  const int64_t words = table.packed_words(kIsBf16, shape.n, shape.k, split);
  std::vector<uint32_t> packed(static_cast<size_t>(words) + 1, 0xDEADBEEF);
  if constexpr (kIsBf16) {
    table.pack_bf16(b.operand(), shape.n, shape.k, split, packed.data());
  } else {
    table.pack_f32(b.operand(), shape.n, shape.k, split, packed.data());
  }
  EXPECT_EQ(packed.back(), 0xDEADBEEF) << name;
  for (T& value : b.values) Store(1e30F, value);  // is not read again
  for (C& value : c.values) Store(-1.0F, value);
  for (C& value : out.values) Store(-1.0F, value);
  problem.packed_b = packed.data();
  multiply(problem);
  for (int64_t row = 0; row < shape.m; ++row) {
    const size_t begin = c.Index(row, 0), columns = static_cast<size_t>(shape.n);
    ASSERT_EQ(std::memcmp(&c.values[begin], &expected[begin], columns * sizeof(C)), 0)
        << name << ", row " << row;
    if (epilogue != GemmEpilogue::kSwiglu) continue;
    ASSERT_EQ(std::memcmp(&out.values[begin], &expected_out[begin], columns / 2 * sizeof(C)), 0)
        << name << ", row " << row << " of out";
  }
}

TEST_P(GemmTest, MatricesPackedBeforehandGiveTheSameBits) {
  for (const GemmTable& table : TestedGemmTables()) {
    const std::string name = table.instruction_set;
    for (GemmEpilogue epilogue :
         {GemmEpilogue::kNone, GemmEpilogue::kAddOther, GemmEpilogue::kSwiglu}) {
      if (epilogue == GemmEpilogue::kSwiglu && GetParam().n % 2 != 0) continue;
      ExpectSameBitsPacked<float, float>(table, table.f32, GetParam(), epilogue, name + " fp32");
      ExpectSameBitsPacked<Bf16, Bf16>(table, table.bf16, GetParam(), epilogue, name + " bf16");
    }
    ExpectSameBitsPacked<Bf16, float>(table, table.bf16_to_fp32, GetParam(), GemmEpilogue::kNone,
                                      name + " bf16 to fp32");
  }
}

// To the bit: who runs on other numbers of cores gets the same losses.
TEST(GemmThreadsTest, ResultsDoNotDependOnTheNumberOfThreads) {
  Random random(5, 0);
  const Matrix<float> a(300, 500, false, random), b(500, 200, true, random);
  const int before = omp_get_max_threads();
  std::vector<std::vector<float>> results;
  for (int threads : {1, 2, 3}) {
    omp_set_num_threads(threads);
    std::vector<float> c(300 * 200);
    Gemm().f32({300, 200, 500, a.operand(), b.operand(), c.data(), 200, false, nullptr,
                GemmEpilogue::kNone, nullptr, 0, nullptr, 0});
    results.push_back(c);
  }
  omp_set_num_threads(before);
  for (const std::vector<float>& c : results) {
    EXPECT_EQ(std::memcmp(c.data(), results[0].data(), c.size() * sizeof(float)), 0);
  }
}

// The first rows of a product, beside rows of the same alone that begin elsewhere in a tile and may
// be in a part of one.
template <typename T, typename C>
void ExpectRowsAlone(void (*multiply)(const GemmProblem<T, C>&), bool add, const Shape& shape,
                     const std::string& name) {
  Random random(19, 0);
  const Matrix<T> a(shape.m, shape.k, shape.a_transposed, random);
  const Matrix<T> b(shape.k, shape.n, shape.b_transposed, random);
  const Matrix<C> before(shape.m, shape.n, false, random);
  auto rows = [&](int64_t first, int64_t count) {
    Matrix<C> c = before;
    GemmProblem<T, C> problem{.m = count, .n = shape.n, .k = shape.k};
    problem.a = a.operand();
    problem.a.data += a.Index(first, 0);
    problem.b = b.operand();
    problem.c = c.values.data() + c.Index(first, 0);
    problem.stride = c.stride;
    problem.add = add;
    multiply(problem);
    return c;
  };
  const Matrix<C> all = rows(0, shape.m);
  for (const auto& [first, count] : {std::pair{int64_t{0}, int64_t{1}}, {3, 7}, {5, 35}}) {
    const Matrix<C> some = rows(first, count);
    for (int64_t row = first; row < first + count; ++row) {
      const size_t begin = all.Index(row, 0), columns = static_cast<size_t>(shape.n);
      ASSERT_EQ(std::memcmp(&all.values[begin], &some.values[begin], columns * sizeof(C)), 0)
          << name << (add ? ", added" : "") << ", row " << row << " of " << count << " from "
          << first;
    }
  }
}

// To the bit: a text that a model continues does not depend on the texts beside it.
TEST(GemmRowsTest, ARowsResultDependsOnNoRowBesideIt) {
  for (const GemmTable& table : TestedGemmTables()) {
    const std::string name = table.instruction_set;
    for (bool transposed : {false, true}) {
      const Shape shape{70, 75, 1605, transposed, !transposed};  // several passes
      ExpectRowsAlone<Bf16, Bf16>(table.bf16, /*add=*/false, shape, name + " bf16");
      for (bool add : {false, true}) {
        ExpectRowsAlone<float, float>(table.f32, add, shape, name + " fp32");
        ExpectRowsAlone<Bf16, float>(table.bf16_to_fp32, add, shape, name + " bf16 to fp32");
      }
    }
  }
}

// A CPU may have an instruction set that is slower than the one below it.
TEST(GemmPeakTest, PairsComeFirstWhereTheyAreMultipliedFaster) {
  std::vector<GemmTable> tables = GemmTables();
  std::erase_if(tables,
                [](const GemmTable& table) { return table.instruction_set == std::string("AMX"); });
  const auto first_with = [&](bool pairs) {
    return std::find_if(tables.begin(), tables.end(),
                        [&](const GemmTable& table) { return table.has_bf16 == pairs; });
  };
  if (first_with(true) == tables.end()) {
    EXPECT_FALSE(MultipliesPairsFast());
  } else {
    EXPECT_EQ(first_with(true) < first_with(false), MultipliesPairsFast());
  }
}

TEST(GemmPeakTest, RegistersMultiplyAtSomeRate) {
  for (const GemmTable& table : TestedGemmTables()) {
    EXPECT_GT(table.register_peak(/*bf16=*/false, 0.001), 1e8) << table.instruction_set;
    EXPECT_GT(table.register_peak(/*bf16=*/true, 0.001), 1e8) << table.instruction_set;
  }
}

}  // namespace
}  // namespace weft::train::kernels
