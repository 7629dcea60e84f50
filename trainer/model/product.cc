#include "trainer/model/product.h"

#include <ATen/Context.h>

#include "trainer/device/device.h"
#include "trainer/kernels/gemm.h"
#include "trainer/model/packed_weights.h"
#include "trainer/model/product_epilogue.h"
#include "trainer/profile/work_time.h"

// LibTorch's oneDNN product, which at::mm takes for bf16 alone: result = alpha * a * b + beta *
// result, of fp32 as well, of transposes without copies (ATen/native/mkldnn/Matmul.h of its
// sources). The wheel exports it but has no header for it; weak, for a LibTorch that has it not.
namespace at::native {
[[gnu::weak]] void mkldnn_matmul(const Tensor& a, const Tensor& b, const Tensor& result, float beta,
                                 float alpha);
}  // namespace at::native

namespace weft::train {
namespace {

using kernels::Bf16;
using kernels::GemmEpilogue;

bool IsRows(const at::Tensor& x) {
  return x.stride(1) == 1 && x.stride(0) >= std::max<int64_t>(1, x.size(1));
}
bool IsColumns(const at::Tensor& x) {
  return x.stride(0) == 1 && x.stride(1) >= std::max<int64_t>(1, x.size(0));
}

bool IsOurs(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  const at::ScalarType type = a.scalar_type();
  return a.is_cpu() && (type == at::kFloat || type == at::kBFloat16) && b.scalar_type() == type &&
         (out.scalar_type() == type || out.scalar_type() == at::kFloat) && IsRows(out) &&
         (IsRows(a) || IsColumns(a)) && (IsRows(b) || IsColumns(b)) && a.numel() > 0 &&
         b.numel() > 0;
}

template <typename T>
kernels::GemmOperand<T> OperandOf(const at::Tensor& x) {
  const bool rows = IsRows(x);
  return {static_cast<const T*>(x.data_ptr()), rows ? x.stride(0) : x.stride(1), !rows};
}

template <typename T, typename C>
kernels::GemmProblem<T, C> ProblemOf(const at::Tensor& a, const at::Tensor& b,
                                     const at::Tensor& out, bool add, const at::Tensor& bias) {
  return {a.size(0),
          b.size(1),
          a.size(1),
          OperandOf<T>(a),
          OperandOf<T>(b),
          static_cast<C*>(out.data_ptr()),
          out.stride(0),
          add,
          bias.defined() ? static_cast<const T*>(bias.data_ptr()) : nullptr};
}

template <typename T, typename C>
kernels::GemmProblem<T, C> WithPacked(kernels::GemmProblem<T, C> problem, PackedWeight* packed) {
  if (packed == nullptr) return problem;
  problem.packed_b = packed->Panels(problem.b, problem.n, problem.k,
                                    kernels::GemmSplit(problem.epilogue, problem.n));
  return problem;
}

void MultiplyByAten(const at::Tensor& a, const at::Tensor& b, at::Tensor out, bool add,
                    const at::Tensor& bias) {
  if (out.scalar_type() != a.scalar_type() && out.is_cuda() && !bias.defined()) {
    // cuBLAS writes, and adds to, fp32 itself.
    if (add) {
      at::addmm_out(out, out, a, b, out.scalar_type());
    } else {
      at::mm_out(out, a, b, out.scalar_type());
    }
  } else if (out.scalar_type() != a.scalar_type()) {
    const at::Tensor product = bias.defined() ? at::addmm(bias, a, b) : at::mm(a, b);
    add ? out.add_(product) : out.copy_(product);
  } else if (add) {
    out.addmm_(a, b);
  } else if (bias.defined()) {
    at::addmm_out(out, bias, a, b);
  } else {
    at::mm_out(out, a, b);
  }
}

void MultiplyByOneDnn(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out, bool add,
                      const at::Tensor& bias) {
  if (bias.defined()) out.copy_(bias);
  at::native::mkldnn_matmul(a, b, out, add || bias.defined() ? 1.0F : 0.0F, 1.0F);
}

GemmShape ShapeOf(const at::Tensor& a, const at::Tensor& b) {
  if (!IsRows(a)) return {GemmPass::kWeightGradient, b.size(1), a.size(0)};
  if (!IsRows(b)) return {GemmPass::kForward, b.size(0), b.size(1)};
  return {GemmPass::kInputGradient, b.size(1), b.size(0)};
}

// As c = a * b + bias and an epilogue of our own loops.
template <typename T>
kernels::GemmProblem<T, T> ProblemThen(const at::Tensor& a, const at::Tensor& b,
                                       const at::Tensor& c, const at::Tensor& bias,
                                       const ProductEpilogue& epilogue) {
  kernels::GemmProblem<T, T> problem = ProblemOf<T, T>(a, b, c, /*add=*/false, bias);
  problem.epilogue = epilogue.kind;
  if (epilogue.other.defined()) {
    problem.other = static_cast<const T*>(epilogue.other.data_ptr());
    problem.other_stride = epilogue.other.stride(0);
  }
  if (epilogue.out.defined()) {
    problem.out = static_cast<T*>(epilogue.out.data_ptr());
    problem.out_stride = epilogue.out.stride(0);
  }
  return problem;
}

// The epilogue as a loop of its own over `product`; of kSwigluGradient the result is in c, else the
// product is c itself.
template <typename T>
void Finish(const at::Tensor& product, const at::Tensor& c, const ProductEpilogue& epilogue) {
  const WorkScope scope(Work::kElementwise);
  const kernels::TypedKernels<T>& kernels = KernelsOf(c).Of<T>();
  auto data = [](const at::Tensor& x) { return static_cast<T*>(x.data_ptr()); };
  switch (epilogue.kind) {
    case GemmEpilogue::kNone:
      return;
    case GemmEpilogue::kAddOther:
      product.add_(epilogue.other);
      return;
    case GemmEpilogue::kGelu:
      return kernels.gelu_forward(c.numel(), data(c), data(epilogue.out));
    case GemmEpilogue::kSwiglu:
      return kernels.swiglu_forward(c.size(0), c.size(1) / 2, data(c), data(epilogue.out));
    case GemmEpilogue::kGeluGradient:
      return kernels.gelu_backward(c.numel(), data(c), data(epilogue.other), data(c));
    case GemmEpilogue::kSwigluGradient:
      return kernels.swiglu_backward(c.size(0), c.size(1) / 2, data(product), data(epilogue.other),
                                     data(c));
  }
}

}  // namespace

// LibTorch 2.11 refuses the call on CPUs without AVX-512, for fp32 too, so that it is tried once.
bool HasOneDnn() {
  static const bool takes_fp32 = [] {
    if (&at::native::mkldnn_matmul == nullptr) return false;
    try {
      at::Tensor out = at::empty({1, 1});
      at::native::mkldnn_matmul(at::ones({1, 1}), at::ones({1, 1}), out, 0.0F, 1.0F);
      return out.item<float>() == 1;
    } catch (const c10::Error&) {
      return false;
    }
  }();
  return takes_fp32 && at::globalContext().userEnabledMkldnn() && at::Context::hasMKLDNN();
}

void Multiply(const GemmLibraries& libraries, const at::Tensor& a, const at::Tensor& b,
              at::Tensor out, bool add, const at::Tensor& bias, PackedWeight* packed) {
  const WorkScope scope(Work::kGemm);
  const KernelLibrary library = libraries.Of(ShapeOf(a, b));
  if (library == KernelLibrary::kOneDnn && HasOneDnn() && IsOurs(a, b, out) &&
      out.scalar_type() == a.scalar_type()) {
    return MultiplyByOneDnn(a, b, out, add, bias);
  }
  if (library != KernelLibrary::kWeft || !IsOurs(a, b, out)) {
    return MultiplyByAten(a, b, std::move(out), add, bias);
  }
  if (a.scalar_type() == at::kFloat) {
    kernels::Gemm().f32(WithPacked(ProblemOf<float, float>(a, b, out, add, bias), packed));
  } else if (out.scalar_type() == at::kFloat) {
    kernels::Gemm().bf16_to_fp32(WithPacked(ProblemOf<Bf16, float>(a, b, out, add, bias), packed));
  } else {
    kernels::Gemm().bf16(WithPacked(ProblemOf<Bf16, Bf16>(a, b, out, add, bias), packed));
  }
}

void MultiplyThen(const GemmLibraries& libraries, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& c, const at::Tensor& bias, const ProductEpilogue& epilogue,
                  PackedWeight* packed) {
  const bool is_wider = epilogue.kind == GemmEpilogue::kSwigluGradient;
  const at::Tensor product = is_wider ? c.narrow(1, 0, b.size(1)) : c;
  if (libraries.Of(ShapeOf(a, b)) == KernelLibrary::kWeft && IsOurs(a, b, product)) {
    const WorkScope scope(Work::kGemm);
    if (a.scalar_type() == at::kFloat) {
      kernels::Gemm().f32(WithPacked(ProblemThen<float>(a, b, product, bias, epilogue), packed));
    } else {
      kernels::Gemm().bf16(WithPacked(ProblemThen<Bf16>(a, b, product, bias, epilogue), packed));
    }
    return;
  }
  const at::Tensor whole = is_wider ? at::empty(product.sizes(), c.options()) : c;
  Multiply(libraries, a, b, whole, /*add=*/false, bias);
  if (c.scalar_type() == at::kFloat) {
    Finish<float>(whole, c, epilogue);
  } else if (c.scalar_type() == at::kBFloat16) {
    Finish<Bf16>(whole, c, epilogue);
  } else {
    Finish<kernels::Fp16>(whole, c, epilogue);
  }
}

}  // namespace weft::train
