// Products with what follows them: in one pass over memory where our own loops multiply, and by the
// product and then a loop of the device elsewhere. Results are alike up to rounding.
#ifndef WEFT_TRAINER_MODEL_PRODUCT_EPILOGUE_H_
#define WEFT_TRAINER_MODEL_PRODUCT_EPILOGUE_H_

#include <ATen/ATen.h>

#include "trainer/kernels/gemm.h"
#include "trainer/model/product.h"

namespace weft::train {

// `other` and `out`: contiguous, of the product's type, with the shapes of kernels::GemmEpilogue.
struct ProductEpilogue {
  kernels::GemmEpilogue kind = kernels::GemmEpilogue::kNone;
  at::Tensor other, out;
};

// c = a * b + bias and then the epilogue, as Multiply of product.h. c: contiguous, of a's type.
void MultiplyThen(const GemmLibraries& libraries, const at::Tensor& a, const at::Tensor& b,
                  const at::Tensor& c, const at::Tensor& bias, const ProductEpilogue& epilogue,
                  PackedWeight* packed = nullptr);

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_PRODUCT_EPILOGUE_H_
