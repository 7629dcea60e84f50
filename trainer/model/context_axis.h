// The ranks that share each sample: its tokens are cut over them (context parallelism), and
// attention brings queries together with the keys and values of other ranks.
//
// Ring (Liu et al., "Ring attention with blockwise transformers", 2023): the tokens of a sample are
// cut into 2 C stretches for C ranks, and rank r has stretches r and 2 C - 1 - r, so that under a
// causal mask every rank has the same work (Brandon et al., "Striped attention", 2023, is another
// such cut). Keys and values go around the ring of ranks; those of one rank are passed on while
// attention on them is computed, and outputs are brought together by their log of sums. In the
// backward pass keys and values go around once more and their gradients travel with them, one hop
// behind, without the part that a rank has for its own keys: of the work on these, half is done
// under the keys' first hop, half under the gradients' last one home.
//
// Ulysses (Jacobs et al., "DeepSpeed Ulysses", 2023): rank r has the r-th of C stretches;
// all-to-all exchanges give each rank all tokens of some heads for attention, and back. These heads
// go in pieces, each an exchange: queries, keys and values of all pieces set out one after the
// other, and attention on a piece is computed while the next ones arrive and the outputs of those
// before it go back. The backward pass does so with the gradients of outputs, and those of queries,
// keys and values. Nothing hides the first exchange of a pass and the last one, so that the outer
// pieces are the smallest. Heads are independent of each other: results do not depend on the
// pieces, to the bit.
//
// Used by one thread. The errors of collectives are thrown as StatusError.
#ifndef WEFT_TRAINER_MODEL_CONTEXT_AXIS_H_
#define WEFT_TRAINER_MODEL_CONTEXT_AXIS_H_

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "trainer/config.h"
#include "trainer/groups/group.h"
#include "trainer/model/attention_tiles.h"

namespace weft::train {

class ContextAxis {
 public:
  // `group` outlives this object.
  ContextAxis(Group* group, ContextMethod method) : group_(group), method_(method) {}

  int rank() const { return group_->rank(); }
  int size() const { return group_->size(); }
  Group& group() const { return *group_; }
  ContextMethod method() const { return method_; }

  // What a sample of `length` tokens must be a multiple of.
  static int64_t UnitOf(ContextMethod method, int size) {
    return method == ContextMethod::kRing ? 2 * size : size;
  }
  // The rows that `rank` holds of a sample of `length` tokens.
  std::vector<TokenSpan> SpansOf(int rank, int64_t length) const;
  // Positions of the rows that `rank` holds, int64 [length / size()].
  at::Tensor PositionsOf(int rank, int64_t length) const;

 private:
  Group* const group_;
  const ContextMethod method_;
};

// Ring attention. Rows of all tensors: those that this rank holds of each sample.
AttentionOutputs AttendAround(const ContextAxis& axis, KernelLibrary library,
                              const AttentionInputs& inputs, int64_t window);
void AttendAroundBackward(const ContextAxis& axis, KernelLibrary library, const at::Tensor& dout,
                          const AttentionInputs& inputs, const AttentionOutputs& outputs,
                          int64_t window, const AttentionInputs& gradients);

// All rows of the heads of a piece: what attention on them reads, and what it has made.
struct AttentionPiece {
  AttentionInputs inputs;
  AttentionOutputs outputs;
};
struct AttendedHeads {
  at::Tensor out;                      // [B, heads, rows, width] of the rows held
  std::vector<AttentionPiece> pieces;  // for the backward pass
};
// Ulysses. Rows of `inputs`, `dout` and `gradients`: those that this rank holds of each sample, of
// all heads, whose number size() divides.
AttendedHeads AttendByHeads(const ContextAxis& axis, KernelLibrary library,
                            const AttentionInputs& inputs, int64_t window);
void AttendByHeadsBackward(const ContextAxis& axis, KernelLibrary library, const at::Tensor& dout,
                           const std::vector<AttentionPiece>& pieces, int64_t window,
                           const AttentionInputs& gradients);
// How often key-value heads are repeated, so that size() divides them: the smallest divisor of
// heads / kv_heads for which that is so. size() divides `heads`.
int64_t RepeatsOfHeads(int64_t heads, int64_t kv_heads, int size);
// Where each piece of the `kv_heads` key-value heads that a rank has in attention begins, and
// `kv_heads` behind the last: at most ten pieces (ChunkEdges). One where the group does not
// overlap.
std::vector<int64_t> HeadEdges(int64_t kv_heads, bool overlaps);

}  // namespace weft::train

#endif  // WEFT_TRAINER_MODEL_CONTEXT_AXIS_H_
