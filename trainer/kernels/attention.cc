#include "trainer/kernels/attention.h"

#include "trainer/kernels/instruction_sets.h"

namespace weft::train::kernels {

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
  return TablesHere<AttentionTable>(WEFT_KERNEL_SETS(Attention));
}

const AttentionTable& Attention() {
  static const AttentionTable table = AttentionTables().front();
  return table;
}

}  // namespace weft::train::kernels
