// Differentiable operations of a block whose products bring what follows them: the residual sum of
// attention's output, activation and residual sum of the feed-forward part, and the activation's
// gradient (product_epilogue.h). As operations.h has them one by one, up to rounding.
#ifndef WEFT_TRAINER_MODEL_FEED_FORWARD_H_
#define WEFT_TRAINER_MODEL_FEED_FORWARD_H_

#include <ATen/ATen.h>

#include "trainer/model/operations.h"

namespace weft::train::operations {

// residual + x * weight^T + bias.
at::Tensor LinearAdd(const Context& context, const at::Tensor& x, const at::Tensor& residual,
                     const ParameterPair& layer);
// residual + the layer `out` of the activation of the layer `in` of x. `residual` may be undefined.
at::Tensor FeedForward(const Context& context, const at::Tensor& x, const at::Tensor& residual,
                       const Expert& layers);

}  // namespace weft::train::operations

#endif  // WEFT_TRAINER_MODEL_FEED_FORWARD_H_
