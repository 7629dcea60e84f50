#include "trainer/kernels/gemm.h"

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

std::vector<GemmTable> GemmTables() {
  std::vector<GemmTable> tables;
  auto add = [&tables](GemmTable table, const char* instruction_set) {
    table.instruction_set = instruction_set;
    tables.push_back(table);
  };
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    if (__builtin_cpu_supports("avx512bf16")) add(avx512bf16::Gemm(), "AVX512-BF16");
    add(avx512::Gemm(), "AVX-512");
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) add(avx2::Gemm(), "AVX2");
#endif
  add(plain::Gemm(), "baseline");
  return tables;
}

const GemmTable& Gemm() {
  static const GemmTable table = GemmTables().front();
  return table;
}

}  // namespace weft::train::kernels
