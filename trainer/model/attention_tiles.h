// Which queries meet which keys in causal attention, with or without a sliding window: tiles, each
// one product of consecutive queries with consecutive keys. Pairs outside of the window are in no
// tile, up to a tile's edge: with a window of w tokens, n queries meet at most 2 n max(w, 64) keys,
// linear in the window, forward and backward.
//
// A token attends to itself and to those before it; with a window of w tokens, to the newest w of
// these. Pure values, thread-safe as such.
#ifndef WEFT_TRAINER_MODEL_ATTENTION_TILES_H_
#define WEFT_TRAINER_MODEL_ATTENTION_TILES_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "trainer/config.h"

namespace weft::train {

// Consecutive tokens of a sample: rows [at, at + length) of a tensor have positions from `position`
// on.
struct TokenSpan {
  int64_t at = 0;
  int64_t position = 0;
  int64_t length = 0;
};

struct AttentionTile {
  enum Mask : uint8_t {
    kNone,    // every query sees every key
    kCausal,  // as many queries as keys; query i sees keys 0 to i
    kBand,  // query i sees key j where 0 <= distance + i - j, and below the window if there is one
  };
  int64_t query = 0, queries = 0;  // first row and number
  int64_t key = 0, keys = 0;
  int64_t distance = 0;  // position of the first query less that of the first key
  Mask mask = kNone;
};

// Every query in a tile sees at least one key there. `window` 0: none; then rows that lie side by
// side share a tile where they may: a tile costs a pass over the sums of its rows.
std::vector<AttentionTile> AttentionTiles(absl::Span<const TokenSpan> queries,
                                          absl::Span<const TokenSpan> keys, int64_t window);

// Queries of B samples [B, heads, rows, width], keys and values [B, key-value heads, rows, width]:
// views of any strides whose last dimension is contiguous. Each key-value head serves
// heads / key-value heads neighbouring heads of queries.
struct AttentionInputs {
  at::Tensor query, key, value;
};
// Outputs [B, heads, rows, width], and log of the sum of exp(scores) [B, heads, rows], fp32: with
// it outputs over different keys are brought together exactly (Milakov and Gimelshein, 2018).
struct AttentionOutputs {
  at::Tensor out, logsumexp;
};

// Outputs of no keys at all: 0, in fp32, and minus infinity.
AttentionOutputs EmptyAttention(const at::Tensor& query);
// Attention over the keys of the tiles by `library` (kernels/attention.h, or LibTorch), brought
// together with what `sum` has.
void AddAttention(KernelLibrary library, const AttentionInputs& inputs,
                  const std::vector<AttentionTile>& tiles, int64_t window, AttentionOutputs& sum);
// The same for the first keys, without sums before: outputs over the keys of the tiles alone. In
// fp32, or in the type of the inputs where one tile has every query.
AttentionOutputs AttendTiles(KernelLibrary library, const AttentionInputs& inputs,
                             const std::vector<AttentionTile>& tiles, int64_t window);
// Adds the tiles' part of the gradients to `gradients` (fp32, shapes of the inputs). `outputs` are
// those over all keys, `out` in the type of the inputs.
void AddAttentionBackward(KernelLibrary library, const at::Tensor& dout,
                          const AttentionInputs& inputs, const AttentionOutputs& outputs,
                          const std::vector<AttentionTile>& tiles, int64_t window,
                          const AttentionInputs& gradients);
// The same without sums before: `gradients`, of any type, are overwritten, with 0 where no tile is.
void AttendTilesBackward(KernelLibrary library, const at::Tensor& dout,
                         const AttentionInputs& inputs, const AttentionOutputs& outputs,
                         const std::vector<AttentionTile>& tiles, int64_t window,
                         const AttentionInputs& gradients);

// All keys of whole samples: the same without sums in fp32 where one tile covers everything, as it
// does for our own loops.
AttentionOutputs Attend(KernelLibrary library, const AttentionInputs& inputs, int64_t window);
void AttendBackward(KernelLibrary library, const at::Tensor& dout, const AttentionInputs& inputs,
                    const AttentionOutputs& outputs, int64_t window,
                    const AttentionInputs& gradients);  // overwritten, type of the inputs

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_ATTENTION_TILES_H_
