// Attention over one tile of queries and keys by the kernels of a device (attention_tiles.h has the
// shapes): flash attention on a GPU, where it takes the tile; else products of matrices with the
// softmax in fp32 between them, which a CPU runs as well.
#ifndef WEFT_TRAINER_MODEL_DEVICE_ATTENTION_H_
#define WEFT_TRAINER_MODEL_DEVICE_ATTENTION_H_

#include <cstdint>
#include <optional>

#include "trainer/model/attention_tiles.h"

namespace weft::train {

// Whether a GPU has the scores of a tile in memory, for numbers of this type and heads of this
// width: where flash attention does not take it.
bool StoresScores(at::ScalarType type, int64_t width, bool has_mask);

// `is_causal`: as many queries as keys, query i sees keys 0 to i. `mask`, added to the scores:
// [1, 1, queries, keys].
AttentionOutputs DeviceAttention(const AttentionInputs& inputs, bool is_causal,
                                 const std::optional<at::Tensor>& mask);
// `outputs`: those of all keys of the queries, which may be more than the tile's.
AttentionInputs DeviceAttentionBackward(const at::Tensor& dout, const AttentionInputs& inputs,
                                        const AttentionOutputs& outputs, bool is_causal,
                                        const std::optional<at::Tensor>& mask);

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_DEVICE_ATTENTION_H_
