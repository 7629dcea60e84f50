#include "trainer/kernels/gemm.h"

#include <algorithm>

#include "trainer/kernels/instruction_sets.h"

namespace weft::train::kernels {

namespace avx512bf16 {
GemmTable Gemm();
}
namespace avx512 {
GemmTable Gemm();
}
namespace avx2 {
GemmTable Gemm();
}
namespace plain {
GemmTable Gemm();
}

bool MultipliesPairsFast() {
#if defined(__x86_64__)
  static const bool is_fast = [] {
    if (!CpuHas(InstructionSet::kAvx512Bf16)) return false;
    // In turns, the best of each: another program that takes the core slows single rounds.
    constexpr int kRounds = 6;
    constexpr double kSeconds = 1e-4;
    double pairs = 0, floats = 0;
    for (int round = 0; round < kRounds; ++round) {
      pairs = std::max(pairs, avx512bf16::Gemm().register_peak(true, kSeconds));
      floats = std::max(floats, avx512::Gemm().register_peak(false, kSeconds));
    }
    return pairs > floats;
  }();
  return is_fast;
#else
  return false;
#endif
}

std::vector<GemmTable> GemmTables() { return TablesHere<GemmTable>(WEFT_KERNEL_SETS(Gemm)); }

const GemmTable& Gemm() {
  static const GemmTable table = GemmTables().front();
  return table;
}

}  // namespace weft::train::kernels
