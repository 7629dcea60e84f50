#include "trainer/kernels/gemm.h"

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

std::vector<GemmTable> GemmTables() { return TablesHere<GemmTable>(WEFT_KERNEL_SETS(Gemm)); }

const GemmTable& Gemm() {
  static const GemmTable table = GemmTables().front();
  return table;
}

}  // namespace weft::train::kernels
