#include "trainer/kernels/attention.h"

#include "trainer/kernels/instruction_sets.h"

namespace weft::train::kernels {

namespace amx {
AttentionTable Attention();
}
namespace avx512bf16 {
AttentionTable Attention();
}
namespace avx512 {
AttentionTable Attention();
}
namespace avx2 {
AttentionTable Attention();
}
namespace plain {
AttentionTable Attention();
}

std::vector<AttentionTable> AttentionTables() {
  std::vector<AttentionTable> tables = TablesHere<AttentionTable>(WEFT_KERNEL_SETS(Attention));
#if defined(__x86_64__)
  if (CpuHas(InstructionSet::kAmx)) PutAmxFirst(amx::Attention(), avx512::Attention(), tables);
#endif
  return tables;
}

const AttentionTable& Attention() {
  static const AttentionTable table = AttentionTables().front();
  return table;
}

}  // namespace weft::train::kernels
