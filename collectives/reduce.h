// Kernels that reduce: out[i] = local[i] op incoming[i], for every number type and operator.
//
// Each exists in three sets, compiled from one text (reduce_kernels.h) for three generations of
// machines, and once more as a naive reference. All four give the same bits, but for the payload of
// a NaN. Of the three operands any two may be the same memory; else they do not overlap. No
// alignment is asked for. Thread-safe.
#ifndef WEFT_COLLECTIVES_REDUCE_H_
#define WEFT_COLLECTIVES_REDUCE_H_

#include <cstddef>

#include "absl/types/span.h"
#include "collectives/data_type.h"
#include "net/transport.h"

namespace weft::collectives {

// data[i] = data[i] / divisor: what follows the sum for kAverage, but for 16-bit floats, whose sums
// are divided before they are rounded (ReduceAllFn). Integers truncate; 16-bit floats divide in
// float32.
using ScaleFn = void (*)(std::byte* data, size_t bytes, int divisor);

// out[i] = (operands[0][i] op operands[1][i] op ...) / divisor, in this order, of `count` >= 2
// operands. None overlaps `out` but one that is the same memory.
using ReduceAllFn = void (*)(std::byte* out, const std::byte* const* operands, size_t count,
                             size_t bytes, int divisor);

enum class KernelSet {
  kReference,  // naive, for tests
  kBaseline,   // any machine of the architecture
  kAvx2,       // AVX2 and F16C
  kAvx512,     // AVX-512 F, BW, DQ, VL
};
inline constexpr KernelSet kKernelSets[] = {KernelSet::kReference, KernelSet::kBaseline,
                                            KernelSet::kAvx2, KernelSet::kAvx512};

// Whether this machine can run the set.
bool Available(KernelSet set);

// The kernel of the best available set, or of the one named. kAverage gives the sum's. Null unless
// Supports(op, type).
net::ReduceFn ReduceFor(DataType type, ReduceOp op);
net::ReduceFn ReduceFor(DataType type, ReduceOp op, KernelSet set);
// The same bits, written around the caches: for large results that are not read again soon, and
// whose memory is not one of the operands'. Null where ReduceFor() is.
net::ReduceFn StreamingReduceFor(DataType type, ReduceOp op);
net::ReduceFn StreamingReduceFor(DataType type, ReduceOp op, KernelSet set);
// Sums and products of 16-bit floats in float32, which round once at the end, where the same
// reductions by pairs round each time. Null for all others: pairs give the same bits.
ReduceAllFn ReduceAllFor(DataType type, ReduceOp op);
ReduceAllFn ReduceAllFor(DataType type, ReduceOp op, KernelSet set);
// By `all`, or where that is null by pairs, in stretches that stay in the first-level cache; the
// divisor is then 1.
void ReduceAll(net::ReduceFn pair, ReduceAllFn all, std::byte* out,
               absl::Span<const std::byte* const> operands, size_t bytes, int divisor = 1);
ScaleFn ScaleFor(DataType type);  // null for kBool
ScaleFn ScaleFor(DataType type, KernelSet set);

namespace internal {
struct KernelTable {
  net::ReduceFn reduce[kDataTypeCount][kReduceOpCount];
  net::ReduceFn stream[kDataTypeCount][kReduceOpCount];
  ReduceAllFn reduce_all[kDataTypeCount][kReduceOpCount];
  ScaleFn scale[kDataTypeCount];
};
void FillReference(KernelTable& table);
void FillBaseline(KernelTable& table);
#if defined(__x86_64__)
void FillAvx2(KernelTable& table);
void FillAvx512(KernelTable& table);
#endif
}  // namespace internal

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_REDUCE_H_
