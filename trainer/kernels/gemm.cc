#include "trainer/kernels/gemm.h"

#if defined(__linux__) && defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>

#include "trainer/kernels/instruction_sets.h"

namespace weft::train::kernels {

namespace amx {
GemmTable Gemm();
}
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

bool KernelGivesAmx() {
#if defined(__linux__) && defined(__x86_64__) && defined(SYS_arch_prctl)
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XTILEDATA
  static const bool gives = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return gives;
#else
  return false;
#endif
}

std::vector<GemmTable> GemmTables() {
  std::vector<GemmTable> tables = TablesHere<GemmTable>(WEFT_KERNEL_SETS(Gemm));
#if defined(__x86_64__)
  if (CpuHas(InstructionSet::kAmx)) {
    GemmTable table = amx::Gemm();
    table.pack_f32 = avx512::Gemm().pack_f32;
    table.register_peak = [](bool bf16, double seconds) {
      return (bf16 ? amx::Gemm() : avx512::Gemm()).register_peak(bf16, seconds);
    };
    PutAmxFirst(table, avx512::Gemm(), tables);
  }
#endif
  return tables;
}

const GemmTable& Gemm() {
  static const GemmTable table = GemmTables().front();
  return table;
}

}  // namespace weft::train::kernels
