// Each loop against LibTorch's operations, in fp32, bf16 and fp16: the CPU's own loops, on every
// instruction set that it has, and those that a device without loops of its own takes.
#include "trainer/kernels/kernels.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <functional>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "trainer/device/aten_kernels.h"

namespace weft::train::kernels {
namespace {

template <typename T>
struct Case;
template <typename T>
struct ByAten {};
template <typename T>
struct Case<ByAten<T>> : Case<T> {};
template <>
struct Case<float> {
  using Type = float;
  static constexpr auto kType = at::kFloat;
  static constexpr double kTolerance = 2e-5;
};
template <>
struct Case<Bf16> {
  using Type = Bf16;
  static constexpr auto kType = at::kBFloat16;
  static constexpr double kTolerance = 2e-2;  // 8 bits of mantissa
};

template <>
struct Case<Fp16> {
  using Type = Fp16;
  static constexpr auto kType = at::kHalf;
  static constexpr double kTolerance = 3e-3;  // 11 bits of mantissa
};

template <typename Tested>
class KernelsTest : public ::testing::Test {
 protected:
  using T = typename Case<Tested>::Type;
  // Runs `body` once for each table of kernels.
  void OnEach(const std::function<void()>& body) {
    const bool is_own = std::is_same_v<T, Tested>;
    for (const KernelTable& table :
         is_own ? KernelTables() : std::vector<KernelTable>{AtenKernels(at::kCPU)}) {
      SCOPED_TRACE(table.instruction_set);
      torch::manual_seed(1);
      kernels_ = &table.template Of<T>();
      body();
    }
  }
  const TypedKernels<T>& kernels() { return *kernels_; }
  // Random numbers that T can hold exactly, in T and in fp32.
  static at::Tensor Make(at::IntArrayRef shape) { return at::randn(shape).to(Case<T>::kType); }
  static T* Data(const at::Tensor& tensor) { return static_cast<T*>(tensor.data_ptr()); }
  static void ExpectNear(const at::Tensor& actual, const at::Tensor& expected) {
    at::Tensor a = actual.to(at::kFloat);
    at::Tensor e = expected.to(at::kFloat);
    double scale = std::max(1.0, e.abs().max().item<double>());
    EXPECT_LT((a - e).abs().max().item<double>(), Case<T>::kTolerance * scale);
  }

 private:
  const TypedKernels<T>* kernels_ = nullptr;  // of the table whose turn it is
};
using Types = ::testing::Types<float, Bf16, Fp16, ByAten<float>, ByAten<Bf16>, ByAten<Fp16>>;
TYPED_TEST_SUITE(KernelsTest, Types);

TYPED_TEST(KernelsTest, LayerNormAndItsGradients) {
  this->OnEach([&] {
    auto x = this->Make({37, 50}), w = this->Make({50}), b = this->Make({50});
    auto dy = this->Make({37, 50}), residual = this->Make({37, 50});
    at::Tensor y = at::empty_like(x), mean = at::empty({37}), rstd = at::empty({37});
    this->kernels().norm_forward(37, 50, 1e-5F, this->Data(x), this->Data(w), this->Data(b),
                                 this->Data(y), mean.data_ptr<float>(), rstd.data_ptr<float>());
    auto xf = x.to(at::kFloat).requires_grad_(), wf = w.to(at::kFloat).requires_grad_(),
         bf = b.to(at::kFloat).requires_grad_();
    auto expected = at::layer_norm(xf, {50}, wf, bf, 1e-5);
    this->ExpectNear(y, expected);
    expected.backward(dy.to(at::kFloat));
    at::Tensor dx = at::empty_like(x), dw = at::empty({50}), db = at::empty({50});
    this->kernels().norm_backward(37, 50, this->Data(dy), this->Data(x), this->Data(w),
                                  mean.data_ptr<float>(), rstd.data_ptr<float>(),
                                  this->Data(residual), this->Data(dx), dw.data_ptr<float>(),
                                  db.data_ptr<float>());
    this->ExpectNear(dx, xf.grad() + residual.to(at::kFloat));
    this->ExpectNear(dw, wf.grad());
    this->ExpectNear(db, bf.grad());
  });
}

TYPED_TEST(KernelsTest, RmsNormAndItsGradients) {
  this->OnEach([&] {
    auto x = this->Make({37, 50}), w = this->Make({50}), dy = this->Make({37, 50});
    at::Tensor y = at::empty_like(x), rstd = at::empty({37});
    this->kernels().norm_forward(37, 50, 1e-5F, this->Data(x), this->Data(w), nullptr,
                                 this->Data(y), nullptr, rstd.data_ptr<float>());
    auto xf = x.to(at::kFloat).requires_grad_(), wf = w.to(at::kFloat).requires_grad_();
    auto expected = xf * at::rsqrt(xf.square().mean(-1, true) + 1e-5) * wf;
    this->ExpectNear(y, expected);
    expected.backward(dy.to(at::kFloat));
    at::Tensor dx = at::empty_like(x), dw = at::empty({50});
    this->kernels().norm_backward(37, 50, this->Data(dy), this->Data(x), this->Data(w), nullptr,
                                  rstd.data_ptr<float>(), nullptr, this->Data(dx),
                                  dw.data_ptr<float>(), nullptr);
    this->ExpectNear(dx, xf.grad());
    this->ExpectNear(dw, wf.grad());
  });
}

TYPED_TEST(KernelsTest, GeluAndItsGradient) {
  this->OnEach([&] {
    auto x = this->Make({1000}) * 3, dy = this->Make({1000});
    at::Tensor y = at::empty_like(x), dx = at::empty_like(x);
    this->kernels().gelu_forward(1000, this->Data(x), this->Data(y));
    this->kernels().gelu_backward(1000, this->Data(dy), this->Data(x), this->Data(dx));
    auto xf = x.to(at::kFloat).requires_grad_();
    auto expected = at::gelu(xf, "tanh");
    this->ExpectNear(y, expected);
    expected.backward(dy.to(at::kFloat));
    this->ExpectNear(dx, xf.grad());
  });
}

TYPED_TEST(KernelsTest, SwigluAndItsGradient) {
  this->OnEach([&] {
    auto x = this->Make({30, 34}), dy = this->Make({30, 17});
    at::Tensor y = at::empty_like(dy), dx = at::empty_like(x);
    this->kernels().swiglu_forward(30, 17, this->Data(x), this->Data(y));
    this->kernels().swiglu_backward(30, 17, this->Data(dy), this->Data(x), this->Data(dx));
    auto xf = x.to(at::kFloat).requires_grad_();
    auto parts = xf.chunk(2, 1);
    auto expected = at::silu(parts[0]) * parts[1];
    this->ExpectNear(y, expected);
    expected.backward(dy.to(at::kFloat));
    this->ExpectNear(dx, xf.grad());
  });
}

// The vocabulary cut in three: parts are put together as the ranks of a tensor axis do.
TYPED_TEST(KernelsTest, CrossEntropyOfASplitVocabulary) {
  this->OnEach([&] {
    auto logits = this->Make({20, 300});
    at::Tensor targets = at::randint(300, {20}, at::kLong);
    at::Tensor whole = logits.clone(), losses = at::empty({20});
    this->kernels().cross_entropy(20, 300, targets.template data_ptr<int64_t>(), 0.5F,
                                  this->Data(whole), losses.data_ptr<float>());
    std::vector<at::Tensor> parts, columns, locals;
    const std::vector<std::pair<int64_t, int64_t>> cuts = {{0, 100}, {100, 30}, {130, 170}};
    for (auto [first, width] : cuts) {
      columns.push_back(logits.narrow(1, first, width).contiguous());
      at::Tensor local = targets - first;
      local.masked_fill_((local < 0).logical_or_(local >= width), -1);
      locals.push_back(local);
      parts.push_back(at::empty({20, 3}));
      this->kernels().cross_entropy_part(20, width, local.template data_ptr<int64_t>(),
                                         this->Data(columns.back()),
                                         parts.back().data_ptr<float>());
    }
    at::Tensor all = at::stack(parts);
    at::Tensor largest = all.select(2, 0).amax(0);
    at::Tensor log_sum =
        (largest + ((all.select(2, 1) * (all.select(2, 0) - largest).exp()).sum(0)).log())
            .contiguous();
    EXPECT_TRUE(at::allclose(log_sum - all.select(2, 2).sum(0), losses, 1e-4, 1e-5));
    for (size_t i = 0; i < cuts.size(); ++i) {
      auto [first, width] = cuts[i];
      this->kernels().cross_entropy_gradient(20, width, locals[i].template data_ptr<int64_t>(),
                                             0.5F, log_sum.data_ptr<float>(),
                                             this->Data(columns[i]));
      this->ExpectNear(columns[i], whole.narrow(1, first, width));
    }
  });
}

// A row's mask depends on its number, not on where the row lies.
TYPED_TEST(KernelsTest, DropoutDropsItsShareWhereverARowLies) {
  this->OnEach([&] {
    auto x = this->Make({64, 100});
    at::Tensor rows = at::arange(64, at::kLong), y = at::empty_like(x);
    this->kernels().dropout(64, 100, 0.25F, 9, rows.template data_ptr<int64_t>(), this->Data(x),
                            this->Data(y));
    const double dropped = (y == 0).sum().template item<double>() / 6400;
    EXPECT_NEAR(dropped, 0.25, 0.03);
    this->ExpectNear(y, at::where(y == 0, at::zeros({}, x.options()), x / 0.75));
    at::Tensor order = at::randperm(64, at::kLong);
    at::Tensor moved = at::empty_like(x), shuffled = x.index_select(0, order);
    this->kernels().dropout(64, 100, 0.25F, 9, order.template data_ptr<int64_t>(),
                            this->Data(shuffled), this->Data(moved));
    EXPECT_TRUE(at::equal(moved, y.index_select(0, order)));
    this->kernels().dropout(64, 100, 0.25F, 10, rows.template data_ptr<int64_t>(), this->Data(x),
                            this->Data(moved));
    EXPECT_FALSE(at::equal(moved, y)) << "another seed drops others";
  });
}

TYPED_TEST(KernelsTest, TokensOfAnotherRankHaveNoRow) {
  this->OnEach([&] {
    auto table = this->Make({5, 16});
    at::Tensor tokens = at::tensor({int64_t{2}, int64_t{-1}, int64_t{4}, int64_t{-1}});
    at::Tensor y = at::empty({4, 16}, table.options());
    this->kernels().embedding_forward(4, 16, 4, tokens.template data_ptr<int64_t>(),
                                      this->Data(table), nullptr, this->Data(y));
    EXPECT_TRUE(at::equal(y[0], table[2]));
    EXPECT_TRUE(at::equal(y[2], table[4]));
    EXPECT_EQ(y[1].abs().max().template item<double>(), 0);
    auto positions = this->Make({4, 16});
    this->kernels().embedding_forward(4, 16, 4, tokens.template data_ptr<int64_t>(),
                                      this->Data(table), this->Data(positions), this->Data(y));
    EXPECT_NE(y[0].abs().max().template item<double>(), 0);
    EXPECT_EQ(y[1].abs().max().template item<double>(), 0) << "nor a position's";
    auto dy = this->Make({4, 16});
    at::Tensor dtable = at::full({5, 16}, 7.0);
    EmbeddingBackward(this->kernels(), 4, 16, 5, tokens.template data_ptr<int64_t>(),
                      this->Data(dy), false, dtable.data_ptr<float>());
    EXPECT_TRUE(at::equal(dtable[2], dy[0].to(at::kFloat)));
    EXPECT_EQ(dtable[0].abs().max().template item<double>(), 0);
    EXPECT_NEAR(dtable.sum().template item<double>(),
                (dy[0] + dy[2]).to(at::kFloat).sum().template item<double>(), 0.2);
  });
}

TYPED_TEST(KernelsTest, CrossEntropyAndItsGradient) {
  this->OnEach([&] {
    auto logits = this->Make({20, 300}) * 4;
    auto targets = at::randint(300, {20}, at::kLong);
    auto lf = logits.to(at::kFloat).requires_grad_();
    auto expected = at::nll_loss(at::log_softmax(lf, 1), targets, {}, at::Reduction::None);
    at::Tensor losses = at::empty({20});
    at::Tensor before = logits.clone();
    this->kernels().cross_entropy(20, 300, targets.template data_ptr<int64_t>(), 0,
                                  this->Data(logits), losses.data_ptr<float>());
    this->ExpectNear(losses, expected);
    EXPECT_TRUE(at::equal(logits, before)) << "without a scale the logits stay";
    this->kernels().cross_entropy(20, 300, targets.template data_ptr<int64_t>(), 0.5F,
                                  this->Data(logits), losses.data_ptr<float>());
    (expected * 0.5).sum().backward();
    this->ExpectNear(logits, lf.grad());
  });
}

TYPED_TEST(KernelsTest, CrossEntropyOfANonFiniteRowIsNotFinite) {
  this->OnEach([&] {
    auto logits = this->Make({1, 40});
    logits[0][7] = std::numeric_limits<float>::quiet_NaN();
    at::Tensor losses = at::empty({1}), targets = at::zeros({1}, at::kLong);
    this->kernels().cross_entropy(1, 40, targets.template data_ptr<int64_t>(), 1.0F,
                                  this->Data(logits), losses.data_ptr<float>());
    EXPECT_FALSE(std::isfinite(losses.item<float>()));
  });
}

TYPED_TEST(KernelsTest, RotationIsUndoneByItsInverseAndTurnsByTheAngle) {
  this->OnEach([&] {
    constexpr int64_t kRows = 12, kSequence = 6, kHeads = 3, kWidth = 8, kStride = 40;
    auto x = this->Make({kRows, kStride});
    auto before = x.clone();
    auto angle = at::rand({kSequence, kWidth / 2}) * 3;
    auto cosine = at::cos(angle), sine = at::sin(angle);
    auto rotate = [&](bool inverse) {
      this->kernels().rotate(kRows, kSequence, kHeads, kWidth, kStride,
                             cosine.template data_ptr<float>(), sine.template data_ptr<float>(),
                             inverse, this->Data(x));
    };
    rotate(false);
    auto old_pairs = before.to(at::kFloat)
                         .narrow(1, 0, kHeads * kWidth)
                         .view({kRows / kSequence, kSequence, kHeads, 2, kWidth / 2});
    auto c = cosine.view({1, kSequence, 1, kWidth / 2}),
         s = sine.view({1, kSequence, 1, kWidth / 2});
    auto a = old_pairs.select(3, 0), b = old_pairs.select(3, 1);
    auto expected = at::stack({a * c - b * s, b * c + a * s}, 3).view({kRows, kHeads * kWidth});
    this->ExpectNear(x.narrow(1, 0, kHeads * kWidth), expected);
    EXPECT_TRUE(at::equal(x.narrow(1, kHeads * kWidth, kStride - kHeads * kWidth),
                          before.narrow(1, kHeads * kWidth, kStride - kHeads * kWidth)));
    rotate(true);
    this->ExpectNear(x, before);
  });
}

TYPED_TEST(KernelsTest, EmbeddingAndItsGradients) {
  this->OnEach([&] {
    auto table = this->Make({11, 16}), positions = this->Make({5, 16}), dy = this->Make({20, 16});
    auto tokens = at::randint(9, {20}, at::kLong);  // 9 and 10 do not occur
    at::Tensor y = at::empty({20, 16}, table.options());
    const int64_t* ids = tokens.template data_ptr<int64_t>();
    this->kernels().embedding_forward(20, 16, 5, ids, this->Data(table), this->Data(positions),
                                      this->Data(y));
    auto tf = table.to(at::kFloat).requires_grad_(), pf = positions.to(at::kFloat).requires_grad_();
    auto expected = at::embedding(tf, tokens) + pf.repeat({4, 1});
    this->ExpectNear(y, expected);
    expected.backward(dy.to(at::kFloat));
    at::Tensor dtable = at::full({11, 16}, 7.0F), dpositions = at::full({5, 16}, 7.0F);
    EmbeddingBackward(this->kernels(), 20, 16, 11, ids, this->Data(dy), false,
                      dtable.data_ptr<float>());
    PositionBackward(this->kernels(), 20, 16, 5, this->Data(dy), false,
                     dpositions.data_ptr<float>());
    this->ExpectNear(dtable, tf.grad());
    this->ExpectNear(dpositions, pf.grad());
    EmbeddingBackward(this->kernels(), 20, 16, 11, ids, this->Data(dy), true,
                      dtable.data_ptr<float>());
    this->ExpectNear(dtable, tf.grad() * 2);
  });
}

TYPED_TEST(KernelsTest, OnePositionHasTheSumOfAllRows) {
  this->OnEach([&] {
    auto dy = this->Make({20, 16});
    at::Tensor sum = at::ones({16});
    PositionBackward(this->kernels(), 20, 16, 1, this->Data(dy), true, sum.data_ptr<float>());
    this->ExpectNear(sum, dy.to(at::kFloat).sum(0) + 1);
    PositionBackward(this->kernels(), 20, 16, 1, this->Data(dy), false, sum.data_ptr<float>());
    this->ExpectNear(sum, dy.to(at::kFloat).sum(0));
  });
}

TYPED_TEST(KernelsTest, SumSquaresAndAccumulate) {
  this->OnEach([&] {
    auto x = this->Make({50000});
    const at::Tensor before = x.clone();
    double expected = x.to(at::kDouble).square().sum().template item<double>();
    EXPECT_NEAR(this->kernels().sum_squares(50000, this->Data(x)), expected, 1e-4 * expected);
    EXPECT_TRUE(at::equal(x, before));
    at::Tensor sum = at::ones({50000});
    this->kernels().accumulate(50000, this->Data(x), true, sum.data_ptr<float>());
    EXPECT_TRUE(at::allclose(sum, x.to(at::kFloat) + 1));
  });
}

TYPED_TEST(KernelsTest, AdamWIsTorchs) {
  this->OnEach([&] {
    constexpr int64_t kCount = 40003;
    auto start = at::randn({kCount});
    auto reference = start.clone().requires_grad_();
    torch::optim::AdamW torch_adamw(
        {reference},
        torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
    at::Tensor ours = start.clone(), mean = at::zeros({kCount}), variance = at::zeros({kCount});
    for (int t = 1; t <= 5; ++t) {
      auto gradient = this->Make({kCount});
      reference.mutable_grad() = gradient.to(at::kFloat) * 0.5;
      torch_adamw.step();
      AdamW step{.learning_rate = 1e-2F,
                 .beta1 = 0.9F,
                 .beta2 = 0.95F,
                 .epsilon = 1e-8F,
                 .weight_decay = 0.1F,
                 .correction1 = static_cast<float>(1 - std::pow(0.9, t)),
                 .correction2_root = static_cast<float>(std::sqrt(1 - std::pow(0.95, t))),
                 .gradient_scale = 0.5F};
      this->kernels().adamw(kCount, step, this->Data(gradient), ours.data_ptr<float>(),
                            mean.data_ptr<float>(), variance.data_ptr<float>());
    }
    EXPECT_LT((ours - reference).abs().max().template item<double>(), 2e-6);
  });
}

TEST(Fp16Test, ConvertsAsLibTorchBothWays) {
  for (int bits = 0; bits < 0x10000; ++bits) {
    Fp16 value{static_cast<uint16_t>(bits)};
    at::Tensor half = at::empty({1}, at::kHalf);
    *static_cast<uint16_t*>(half.data_ptr()) = value.bits;
    const float expected = half.to(at::kFloat).item<float>();
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(Load(value)));
      continue;
    }
    ASSERT_EQ(Load(value), expected) << bits;
    Fp16 back;
    Store(expected, back);
    ASSERT_EQ(back.bits, value.bits);
  }
  // Between the numbers that fp16 has: normal, subnormal, above the largest, halfway.
  at::Tensor x = at::randn({20000}) * at::pow(10.0, at::rand({20000}) * 14 - 9);
  const float special[] = {65504.0F, 65519.9F,   65520.0F,     1e30F,        0x1p-24F,
                           0x1p-25F, 0x1.8p-25F, 0x1.ffcp-15F, 0x1.ffep-15F, 1.00048828125F};
  std::copy(std::begin(special), std::end(special), x.data_ptr<float>());
  at::Tensor expected = x.to(at::kHalf);
  for (int64_t i = 0; i < x.numel(); ++i) {
    Fp16 value;
    Store(x.data_ptr<float>()[i], value);
    ASSERT_EQ(value.bits, static_cast<uint16_t*>(expected.data_ptr())[i]) << x.data_ptr<float>()[i];
  }
}

// The mean of many draws is the number, each draw is one of its two neighbours, and a number that
// bf16 has stays.
TEST(Bf16Test, StochasticRoundingIsRightOnAverage) {
  constexpr int64_t kCount = 1 << 18;
  for (const KernelTable& table : KernelTables()) {
    SCOPED_TRACE(table.instruction_set);
    for (float x : {1.001F, -3.3e-4F, 1.5F, 7.77e20F}) {
      at::Tensor in = at::full({kCount}, x), out = at::empty({kCount}, at::kBFloat16);
      table.fp32.round_stochastically(kCount, 77, 5, in.data_ptr<float>(),
                                      static_cast<Bf16*>(out.data_ptr()));
      at::Tensor wide = out.to(at::kDouble);
      const double step = std::abs(static_cast<double>(x)) / 128;
      EXPECT_LE((wide - static_cast<double>(x)).abs().max().item<double>(), step);
      // The deviation of the mean is below step / 2 / sqrt(count); eight of them.
      EXPECT_NEAR(wide.mean().item<double>(), static_cast<double>(x), step * 4 / 512);
      if (x == 1.5F) {
        EXPECT_TRUE(at::equal(out, in.to(at::kBFloat16)));
      }
    }
    const float special[3] = {std::numeric_limits<float>::infinity(),
                              -std::numeric_limits<float>::infinity(),
                              std::numeric_limits<float>::quiet_NaN()};
    Bf16 out[3];
    table.fp32.round_stochastically(3, 1, 0, special, out);
    EXPECT_EQ(Load(out[0]), special[0]);
    EXPECT_EQ(Load(out[1]), special[1]);
    EXPECT_TRUE(std::isnan(Load(out[2])));
  }
}

TEST(Bf16Test, RoundsToNearestEvenAsLibTorch) {
  at::Tensor x = at::randn({10000}) * 100;
  x[0] = std::numeric_limits<float>::infinity();
  x[1] = 1.00390625F;  // halfway: to even
  x[2] = 3.3e38F;
  at::Tensor expected = x.to(at::kBFloat16);
  for (int64_t i = 0; i < x.numel(); ++i) {
    Bf16 value;
    Store(x.data_ptr<float>()[i], value);
    ASSERT_EQ(value.bits, static_cast<Bf16*>(expected.data_ptr())[i].bits) << i;
  }
  Bf16 nan;
  Store(std::numeric_limits<float>::quiet_NaN(), nan);
  EXPECT_TRUE(std::isnan(Load(nan)));
}

}  // namespace
}  // namespace weft::train::kernels
