// The loops of trainer/kernels with the tiles and the packing of AVX512-BF16, in plain C++: what
// the CPU of a test lacks is tested as well.
#ifndef WEFT_TESTS_TRAINER_KERNELS_EMULATED_H_
#define WEFT_TESTS_TRAINER_KERNELS_EMULATED_H_

#include <vector>

#include "trainer/kernels/attention.h"
#include "trainer/kernels/gemm.h"

namespace weft::train::kernels {

namespace emulated {
GemmTable Gemm();
AttentionTable Attention();
}  // namespace emulated

// All that this CPU can run, and the emulated ones.
template <typename Table>
std::vector<Table> WithEmulated(std::vector<Table> tables, Table emulated) {
  emulated.instruction_set = "AVX512-BF16, emulated";
  tables.push_back(emulated);
  return tables;
}
inline std::vector<GemmTable> TestedGemmTables() {
  return WithEmulated(GemmTables(), emulated::Gemm());
}
inline std::vector<AttentionTable> TestedAttentionTables() {
  return WithEmulated(AttentionTables(), emulated::Attention());
}

}  // namespace weft::train::kernels

#endif  // WEFT_TESTS_TRAINER_KERNELS_EMULATED_H_
