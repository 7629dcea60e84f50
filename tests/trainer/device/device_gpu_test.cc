// What only a GPU can show: its kernels, those of libweft-train-cuda.so where that is built, and
// attention, against the CPU's loops.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <vector>

#include "base/units.h"
#include "trainer/device/aten_kernels.h"
#include "trainer/device/device.h"
#include "trainer/model/attention_tiles.h"
#include "trainer/model/product.h"

namespace weft::train {
namespace {

using kernels::Bf16;
using kernels::Fp16;
using kernels::TypedKernels;

template <typename T>
constexpr at::ScalarType kType = std::is_same_v<T, Bf16>   ? at::kBFloat16
                                 : std::is_same_v<T, Fp16> ? at::kHalf
                                                           : at::kFloat;
template <typename T>
constexpr double kTolerance = std::is_same_v<T, float> ? 5e-5 : 2e-2;

bool HasGpu(std::string& why) {
  static const absl::StatusOr<at::Device> device = OpenDevice(DeviceKind::kCuda, 0);
  why = std::string(device.status().message());
  return device.ok();
}

template <typename T>
class DeviceGpuTest : public ::testing::Test {
 protected:
  using Tensors = std::vector<at::Tensor>;
  void SetUp() override {
    std::string why;
    if (!HasGpu(why)) GTEST_SKIP() << why;
    torch::manual_seed(1);
  }
  static at::Tensor Make(at::IntArrayRef shape) { return at::randn(shape).to(kType<T>); }
  static T* At(const at::Tensor& x) {
    return x.defined() ? static_cast<T*>(x.data_ptr()) : nullptr;
  }
  static float* Float(const at::Tensor& x) { return x.defined() ? x.data_ptr<float>() : nullptr; }
  // Runs `body` on the CPU and on copies of the tensors on the GPU; afterwards all are alike.
  static void Compare(const Tensors& tensors,
                      const std::function<void(const TypedKernels<T>&, const Tensors&)>& body,
                      double tolerance = kTolerance<T>) {
    Tensors on_gpu;
    for (const at::Tensor& x : tensors) on_gpu.push_back(x.defined() ? x.to(at::kCUDA) : x);
    body(kernels::Kernels().Of<T>(), tensors);
    body(KernelsOf(on_gpu[0]).template Of<T>(), on_gpu);
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (!tensors[i].defined()) continue;
      const at::Tensor a = on_gpu[i].cpu().to(at::kDouble), e = tensors[i].to(at::kDouble);
      const double scale = std::max(1.0, e.abs().max().item<double>());
      EXPECT_LT((a - e).abs().max().item<double>(), tolerance * scale) << "tensor " << i;
    }
  }
};
using Types = ::testing::Types<float, Bf16, Fp16>;
TYPED_TEST_SUITE(DeviceGpuTest, Types);

TYPED_TEST(DeviceGpuTest, NormsAreTheCpus) {
  for (bool is_layer_norm : {true, false}) {
    for (int64_t width : {50, 1024, 2048, 3072, 5000, 8192, 10000}) {
      constexpr int64_t kRows = 1337;  // more than one for some blocks
      const auto fp32 = at::TensorOptions(at::kFloat);
      const at::Tensor mean = is_layer_norm ? at::zeros({kRows}, fp32) : at::Tensor();
      const at::Tensor bias = is_layer_norm ? this->Make({width}) : at::Tensor();
      const at::Tensor dbias = is_layer_norm ? at::zeros({width}, fp32) : at::Tensor();
      this->Compare({this->Make({kRows, width}), this->Make({width}), bias,
                     at::zeros({kRows, width}, kType<TypeParam>), mean, at::zeros({kRows}, fp32),
                     this->Make({kRows, width}), this->Make({kRows, width}),
                     at::zeros({kRows, width}, kType<TypeParam>), at::zeros({width}, fp32), dbias},
                    [&](const auto& kernels, const auto& t) {
                      kernels.norm_forward(kRows, width, 1e-5F, this->At(t[0]), this->At(t[1]),
                                           this->At(t[2]), this->At(t[3]), this->Float(t[4]),
                                           this->Float(t[5]));
                      kernels.norm_backward(kRows, width, this->At(t[6]), this->At(t[0]),
                                            this->At(t[1]), this->Float(t[4]), this->Float(t[5]),
                                            this->At(t[7]), this->At(t[8]), this->Float(t[9]),
                                            this->Float(t[10]));
                    });
    }
  }
}

// Widths with and without packs of 16 bytes.
TYPED_TEST(DeviceGpuTest, ActivationsAreTheCpus) {
  constexpr int64_t kRows = 33;
  for (int64_t width : {130, 128}) {
    const auto none = [&] { return at::zeros({kRows, 2 * width}, kType<TypeParam>); };
    this->Compare({this->Make({kRows, 2 * width}) * 4, this->Make({kRows, 2 * width}), none(),
                   none(), none(), none()},
                  [&](const auto& kernels, const auto& t) {
                    const int64_t count = 2 * kRows * width;
                    kernels.gelu_forward(count, this->At(t[0]), this->At(t[2]));
                    kernels.gelu_backward(count, this->At(t[1]), this->At(t[0]), this->At(t[3]));
                    kernels.swiglu_forward(kRows, width, this->At(t[0]), this->At(t[4]));
                    kernels.swiglu_backward(kRows, width, this->At(t[1]), this->At(t[0]),
                                            this->At(t[5]));
                  });
  }
}

TYPED_TEST(DeviceGpuTest, RotationIsTheCpus) {
  constexpr int64_t kRows = 24, kSequence = 12, kHeads = 3;
  for (int64_t width : {16, 12}) {
    const int64_t stride = 5 * width;
    const at::Tensor angle = at::rand({kSequence, width / 2}) * 3;
    for (bool inverse : {false, true}) {
      this->Compare({this->Make({kRows, stride}), at::cos(angle), at::sin(angle)},
                    [&](const auto& kernels, const auto& t) {
                      kernels.rotate(kRows, kSequence, kHeads, width, stride, this->Float(t[1]),
                                     this->Float(t[2]), inverse, this->At(t[0]));
                    });
    }
  }
}

TYPED_TEST(DeviceGpuTest, EmbeddingIsTheCpus) {
  constexpr int64_t kRows = 40, kWidth = 48, kVocab = 30, kSequence = 10;
  at::Tensor tokens = at::randint(kVocab, {kRows}, at::kLong);
  tokens[3] = -1;
  this->Compare({this->Make({kVocab, kWidth}), this->Make({kSequence, kWidth}), tokens,
                 at::zeros({kRows, kWidth}, kType<TypeParam>), this->Make({kRows, kWidth}),
                 at::ones({kVocab, kWidth}), at::ones({kSequence, kWidth}),
                 this->Make({kVocab, kWidth}), this->Make({kSequence, kWidth})},
                [&](const auto& kernels, const auto& t) {
                  const int64_t* ids = t[2].template data_ptr<int64_t>();
                  kernels.embedding_forward(kRows, kWidth, kSequence, ids, this->At(t[0]),
                                            this->At(t[1]), this->At(t[3]));
                  kernels.embedding_backward_fp32(kRows, kWidth, kVocab, ids, this->At(t[4]), true,
                                                  this->Float(t[5]));
                  kernels.position_backward_fp32(kRows, kWidth, kSequence, this->At(t[4]), false,
                                                 this->Float(t[6]));
                  kernels.embedding_backward(kRows, kWidth, kVocab, ids, this->At(t[4]), false,
                                             this->At(t[7]));
                  kernels.position_backward(kRows, kWidth, kSequence, this->At(t[4]), true,
                                            this->At(t[8]));
                });
}

// A bias's gradient: a table of one position.
TYPED_TEST(DeviceGpuTest, SumsOverRowsAreTheCpus) {
  for (int64_t rows : {1, 1000}) {
    for (int64_t width : {50, 6144}) {
      this->Compare(
          {this->Make({rows, width}), at::ones({width}), this->Make({width})},
          [&](const auto& kernels, const auto& t) {
            kernels.position_backward_fp32(rows, width, 1, this->At(t[0]), true, this->Float(t[1]));
            kernels.position_backward(rows, width, 1, this->At(t[0]), false, this->At(t[2]));
          });
    }
  }
}

TYPED_TEST(DeviceGpuTest, CrossEntropyIsTheCpus) {
  constexpr int64_t kRows = 19;
  for (int64_t vocab : {1003, 9008}) {
    const at::Tensor targets = at::randint(vocab, {kRows}, at::kLong);
    const at::Tensor logits = this->Make({kRows, vocab}) * 3;
    this->Compare(
        {logits.clone(), targets, at::zeros({kRows}), logits.clone(), at::zeros({kRows, 3}),
         at::logsumexp(logits.to(at::kFloat), 1)},
        [&](const auto& kernels, const auto& t) {
          const int64_t* ids = t[1].template data_ptr<int64_t>();
          kernels.cross_entropy(kRows, vocab, ids, 0.5F, this->At(t[0]), this->Float(t[2]));
          kernels.cross_entropy_part(kRows, vocab, ids, this->At(t[3]), this->Float(t[4]));
          kernels.cross_entropy_gradient(kRows, vocab, ids, 0.5F, this->Float(t[5]),
                                         this->At(t[3]));
        });
  }
}

TYPED_TEST(DeviceGpuTest, DropsTheCpusElements) {
  constexpr int64_t kRows = 50, kWidth = 70;
  this->Compare({this->Make({kRows, kWidth}), at::randint(1 << 30, {kRows}, at::kLong),
                 at::zeros({kRows, kWidth}, kType<TypeParam>)},
                [&](const auto& kernels, const auto& t) {
                  kernels.dropout(kRows, kWidth, 0.3F, 12345, t[1].template data_ptr<int64_t>(),
                                  this->At(t[0]), this->At(t[2]));
                });
}

constexpr kernels::AdamW kAdamW = {.learning_rate = 1e-2F,
                                   .beta1 = 0.9F,
                                   .beta2 = 0.95F,
                                   .epsilon = 1e-8F,
                                   .weight_decay = 0.1F,
                                   .correction1 = 0.1F,
                                   .correction2_root = 0.22F,
                                   .gradient_scale = 0.5F};

TYPED_TEST(DeviceGpuTest, OptimizersAreTheCpus) {
  const kernels::Sgd sgd{1e-2F, 0.9F, 0.1F, 0.5F, true};
  const kernels::Lion lion{1e-2F, 0.9F, 0.95F, 0.1F, 0.5F};
  for (int64_t count : {40003, 40004}) {
    const auto state = [&] { return at::rand({count}); };
    this->Compare(
        {this->Make({count}), state(), state(), state(), state(), state(), state(), state(),
         state(), state(), state(), at::rand({count}).to(kType<TypeParam>)},
        [&](const auto& kernels, const auto& t) {
          double sums[2];
          kernels.adamw(count, kAdamW, this->At(t[0]), this->Float(t[1]), this->Float(t[2]),
                        this->Float(t[3]));
          kernels.sgd(count, sgd, this->At(t[0]), this->Float(t[4]), this->Float(t[5]));
          // From a mean of one sign: a sum near 0 may round to either.
          kernels.lion(count, lion, this->At(t[11]), this->Float(t[6]), this->Float(t[7]));
          kernels.lamb_measure(count, kAdamW, this->At(t[0]), this->Float(t[8]), this->Float(t[9]),
                               this->Float(t[10]), sums);
        },
        1e-4);
  }
}

TYPED_TEST(DeviceGpuTest, SumsAndPassesOverBuffersAreTheCpus) {
  constexpr int64_t kCount = 700001;
  const kernels::Momentum momentum{0.9F, 0.5F, true};
  std::vector<double> sums;  // the CPU's, then the GPU's
  const auto state = [] { return at::rand({kCount}); };
  this->Compare(
      {this->Make({kCount}), state(), state(), state(), state(), state(), state()},
      [&](const auto& kernels, const auto& t) {
        double of_lamb[2];
        kernels.lamb_measure(kCount, kAdamW, this->At(t[0]), this->Float(t[1]), this->Float(t[2]),
                             this->Float(t[3]), of_lamb);
        sums.insert(sums.end(), of_lamb, of_lamb + 2);
        sums.push_back(kernels.sum_squares(kCount, this->At(t[0])));
        kernels.momentum(kCount, momentum, this->At(t[0]), this->Float(t[4]), this->Float(t[5]));
        kernels.accumulate(kCount, this->At(t[0]), true, this->Float(t[6]));
      },
      1e-4);
  ASSERT_EQ(sums.size(), 6U);
  for (size_t i = 0; i < 3; ++i) EXPECT_NEAR(sums[i + 3] / sums[i], 1, 1e-4) << "sum " << i;
}

TEST(DeviceGpuFp32Test, PassesOverBuffersAreTheCpus) {
  std::string why;
  if (!HasGpu(why)) GTEST_SKIP() << why;
  constexpr int64_t kCount = 40003;
  const at::Tensor from = at::randn({kCount}), onto = at::randn({kCount});
  const auto run = [&](at::Device device) {
    const at::Tensor x = from.to(device),
                     y = onto.to(device, /*non_blocking=*/false, /*copy=*/true);
    const at::Tensor rounded = at::empty({kCount}, x.options().dtype(at::kBFloat16));
    const at::Tensor wide = at::empty_like(x);
    const kernels::Fp32Kernels& kernels = KernelsOf(x).fp32;
    kernels.step_along(kCount, 0.9F, 0.1F, x.data_ptr<float>(), y.data_ptr<float>());
    auto* narrow = static_cast<Bf16*>(rounded.data_ptr());
    kernels.round_stochastically(kCount, 0x123456789ABCDEFULL, 17, x.data_ptr<float>(), narrow);
    kernels.widen(kCount, narrow, wide.data_ptr<float>());
    return std::vector<at::Tensor>{y.cpu(), wide.cpu()};
  };
  const std::vector<at::Tensor> cpu = run(at::kCPU), gpu = run(at::kCUDA);
  EXPECT_TRUE(at::allclose(gpu[0], cpu[0], 1e-6, 1e-6));
  EXPECT_TRUE(at::equal(gpu[1], cpu[1])) << "the draws differ";
}

TYPED_TEST(DeviceGpuTest, AttentionIsTheCpus) {
  constexpr int64_t kLength = 96;
  for (int64_t window : {0, 20}) {
    const AttentionInputs cpu{this->Make({2, 4, kLength, 64}), this->Make({2, 2, kLength, 64}),
                              this->Make({2, 2, kLength, 64})};
    const at::Tensor dout = this->Make({2, 4, kLength, 64});
    const auto to_gpu = [](const at::Tensor& x) { return x.to(at::kCUDA); };
    const AttentionInputs gpu{to_gpu(cpu.query), to_gpu(cpu.key), to_gpu(cpu.value)};
    const auto run = [&](const AttentionInputs& inputs, const at::Tensor& given) {
      const AttentionOutputs outputs = Attend(KernelLibrary::kAten, inputs, window);
      const AttentionInputs gradients{at::empty_like(inputs.query), at::empty_like(inputs.key),
                                      at::empty_like(inputs.value)};
      AttendBackward(KernelLibrary::kAten, given, inputs, outputs, window, gradients);
      return std::vector<at::Tensor>{outputs.out, outputs.logsumexp, gradients.query, gradients.key,
                                     gradients.value};
    };
    const std::vector<at::Tensor> expected = run(cpu, dout), actual = run(gpu, to_gpu(dout));
    for (size_t i = 0; i < expected.size(); ++i) {
      const at::Tensor e = expected[i].to(at::kDouble), a = actual[i].cpu().to(at::kDouble);
      const double scale = std::max(1.0, e.abs().max().item<double>());
      EXPECT_LT((a - e).abs().max().item<double>(), 2 * kTolerance<TypeParam> * scale)
          << "result " << i << ", window " << window;
    }
  }
}

// LibTorch keeps the memory of tensors that have gone; the check of a run that goes on in the same
// process must not miss it.
TEST(DeviceMemoryGpuTest, ARunFindsTheMemoryFreeThatTheRunBeforeHad) {
  std::string why;
  if (!HasGpu(why)) GTEST_SKIP() << why;
  const at::Device gpu(at::kCUDA, 0);
  (void)at::empty({MiB(512).count()}, at::TensorOptions(at::kByte).device(gpu));
  const Bytes before = MemoryOf(gpu).free;
  ASSERT_TRUE(OpenDevice(DeviceKind::kCuda, 0).ok());
  EXPECT_GE(MemoryOf(gpu).free, before + MiB(512));
}

TEST(DeviceAddressGpuTest, IsAPlaceInTheHost) {
  std::string why;
  if (!HasGpu(why)) GTEST_SKIP() << why;
  EXPECT_THAT(AddressOf(at::Device(at::kCUDA, 0)),
              testing::ContainsRegex("^[0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f]+[.][0-9]$"));
}

// dweight = dy^T x, written and then added to in fp32.
TYPED_TEST(DeviceGpuTest, ProductsAddToFp32) {
  const at::Tensor dy = this->Make({300, 40}), x = this->Make({300, 24});
  const at::Tensor expected = dy.to(at::kDouble).t().matmul(x.to(at::kDouble));
  const at::Tensor sum = at::empty({40, 24}, at::TensorOptions(at::kCUDA).dtype(at::kFloat));
  const at::Tensor dy_gpu = dy.to(at::kCUDA), x_gpu = x.to(at::kCUDA);
  Multiply(GemmLibraries(KernelLibrary::kAten), dy_gpu.t(), x_gpu, sum);
  Multiply(GemmLibraries(KernelLibrary::kAten), dy_gpu.t(), x_gpu, sum, /*add=*/true);
  const at::Tensor error = (sum.cpu().to(at::kDouble) - 2 * expected).abs();
  EXPECT_LT(error.max().item<double>(), 1e-4 * 2 * expected.abs().max().item<double>());
}

}  // namespace
}  // namespace weft::train
