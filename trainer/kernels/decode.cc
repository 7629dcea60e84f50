#include "trainer/kernels/decode.h"

namespace weft::train::kernels {

namespace avx512bf16 {
DecodeTable Decode();
}
namespace avx512 {
DecodeTable Decode();
}
namespace avx2 {
DecodeTable Decode();
}
namespace plain {
DecodeTable Decode();
}

std::vector<DecodeTable> DecodeTables() {
  std::vector<DecodeTable> tables;
  auto add = [&tables](DecodeTable table, const char* instruction_set) {
    table.instruction_set = instruction_set;
    tables.push_back(table);
  };
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    if (__builtin_cpu_supports("avx512bf16")) add(avx512bf16::Decode(), "AVX512-BF16");
    add(avx512::Decode(), "AVX-512");
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    add(avx2::Decode(), "AVX2");
  }
#endif
  add(plain::Decode(), "baseline");
  return tables;
}

const DecodeTable& Decoding() {
  static const DecodeTable table = DecodeTables().front();
  return table;
}

}  // namespace weft::train::kernels
