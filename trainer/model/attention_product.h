// One tile of attention (attention_tiles.h), by LibTorch's flash attention for the CPU or by loops
// of our own (kernels/attention.h).
#ifndef WEFT_TRAINER_MODEL_ATTENTION_PRODUCT_H_
#define WEFT_TRAINER_MODEL_ATTENTION_PRODUCT_H_

#include "trainer/config.h"
#include "trainer/model/attention_tiles.h"

namespace weft::train {

// Whether our own loops are asked for and take these tensors: fp32 or bf16, the elements of a row
// side by side. They take a window of any width in one tile, without work for what lies outside.
bool AttendsByOwnLoops(KernelLibrary library, const AttentionInputs& inputs);

// `inputs`: the tile's own rows. LibTorch takes what our own loops do not.
AttentionOutputs AttendTile(KernelLibrary library, const AttentionInputs& inputs,
                            const AttentionTile& tile, int64_t window);
// Gradients in the type of the inputs. `outputs`: over all keys that these queries see.
AttentionInputs AttendTileBackward(KernelLibrary library, const at::Tensor& dout,
                                   const AttentionInputs& inputs, const AttentionOutputs& outputs,
                                   const AttentionTile& tile, int64_t window);
// The same by our own loops, into tensors that are there.
void AttendTileBackwardInto(const at::Tensor& dout, const AttentionInputs& inputs,
                            const AttentionOutputs& outputs, const AttentionTile& tile,
                            int64_t window, const AttentionInputs& gradients);

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_ATTENTION_PRODUCT_H_
