#include "collectives/reduce.h"

#include <algorithm>

#include "base/status.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace weft::collectives {
namespace {

KernelSet Best() {
  if (Available(KernelSet::kAvx512)) return KernelSet::kAvx512;
  if (Available(KernelSet::kAvx2)) return KernelSet::kAvx2;
  return KernelSet::kBaseline;
}

const internal::KernelTable& TableOf(KernelSet set) {
  struct Tables {
    internal::KernelTable of[4] = {};
    Tables() {
      internal::FillReference(of[0]);
      internal::FillBaseline(of[1]);
#if defined(__x86_64__)
      // What fills a table is itself made of the instructions that it is for.
      if (Available(KernelSet::kAvx2)) internal::FillAvx2(of[2]);
      if (Available(KernelSet::kAvx512)) internal::FillAvx512(of[3]);
#endif
    }
  };
  static const Tables tables;
  return tables.of[static_cast<int>(set)];
}

#if defined(__x86_64__)
// CPUID leaf 1, ECX bit 29; not every compiler's __builtin_cpu_supports knows the name.
bool HasF16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

}  // namespace

bool Available(KernelSet set) {
  switch (set) {
    case KernelSet::kReference:
    case KernelSet::kBaseline:
      return true;
#if defined(__x86_64__)
    case KernelSet::kAvx2:
      return __builtin_cpu_supports("avx2") && HasF16c();
    case KernelSet::kAvx512:
      return Available(KernelSet::kAvx2) && __builtin_cpu_supports("avx512f") &&
             __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
             __builtin_cpu_supports("avx512vl");
#endif
    default:
      return false;
  }
}

net::ReduceFn ReduceFor(DataType type, ReduceOp op, KernelSet set) {
  if (op == ReduceOp::kAverage && Supports(op, type)) op = ReduceOp::kSum;
  if (!Supports(op, type)) return nullptr;
  return TableOf(set).reduce[static_cast<int>(type)][static_cast<int>(op)];
}

net::ReduceFn ReduceFor(DataType type, ReduceOp op) {
  static const KernelSet best = Best();
  return ReduceFor(type, op, best);
}

net::ReduceFn StreamingReduceFor(DataType type, ReduceOp op, KernelSet set) {
  if (op == ReduceOp::kAverage && Supports(op, type)) op = ReduceOp::kSum;
  if (!Supports(op, type)) return nullptr;
  return TableOf(set).stream[static_cast<int>(type)][static_cast<int>(op)];
}

net::ReduceFn StreamingReduceFor(DataType type, ReduceOp op) {
  static const KernelSet best = Best();
  return StreamingReduceFor(type, op, best);
}

ReduceAllFn ReduceAllFor(DataType type, ReduceOp op, KernelSet set) {
  if (op == ReduceOp::kAverage && Supports(op, type)) op = ReduceOp::kSum;
  if (!Supports(op, type)) return nullptr;
  return TableOf(set).reduce_all[static_cast<int>(type)][static_cast<int>(op)];
}

ReduceAllFn ReduceAllFor(DataType type, ReduceOp op) {
  static const KernelSet best = Best();
  return ReduceAllFor(type, op, best);
}

void ReduceAll(net::ReduceFn pair, ReduceAllFn all, std::byte* out,
               absl::Span<const std::byte* const> operands, size_t bytes, int divisor) {
  if (all != nullptr) return all(out, operands.data(), operands.size(), bytes, divisor);
  WEFT_CHECK(divisor == 1, "pairs of numbers divided by " << divisor);
  constexpr size_t kStretch = 4096;  // bytes; whole elements of all types
  alignas(64) std::byte sums[kStretch];
  for (size_t done = 0; done < bytes; done += kStretch) {
    const size_t now = std::min(bytes - done, kStretch);
    const std::byte* left = operands[0] + done;
    // `out` may be an operand: it is written when all of them have been read.
    for (size_t i = 1; i < operands.size(); ++i) {
      std::byte* const to = i + 1 == operands.size() ? out + done : sums;
      pair(to, left, operands[i] + done, now);
      left = to;
    }
  }
}

ScaleFn ScaleFor(DataType type, KernelSet set) {
  return TableOf(set).scale[static_cast<int>(type)];
}

ScaleFn ScaleFor(DataType type) {
  static const KernelSet best = Best();
  return ScaleFor(type, best);
}

}  // namespace weft::collectives
