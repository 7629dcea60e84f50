// Kernels that reduce: out[i] = local[i] op incoming[i], for every number type and operator.
//
// Each exists in three sets, compiled from one text (reduce_kernels.h) for three generations of
// machines, and once more as a naive reference. All four give the same bits, but for the payload of
// a NaN. Of the three operands any two may be the same memory; else they do not overlap. No
// alignment is asked for. Thread-safe.
#ifndef WEFT_COLLECTIVES_REDUCE_H_
#define WEFT_COLLECTIVES_REDUCE_H_

#include <cstddef>

#include "collectives/data_type.h"
#include "net/transport.h"

namespace weft::collectives {

// data[i] = data[i] / divisor: what follows the sum for kAverage. Integers truncate; 16-bit floats
// divide in float32.
using ScaleFn = void (*)(std::byte* data, size_t bytes, int divisor);

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
ScaleFn ScaleFor(DataType type);  // null for kBool
ScaleFn ScaleFor(DataType type, KernelSet set);

namespace internal {
struct KernelTable {
  net::ReduceFn reduce[kDataTypeCount][kReduceOpCount];
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
