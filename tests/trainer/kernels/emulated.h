// The loops of trainer/kernels with the tiles and the packing of AVX512-BF16 and of AMX, in plain
// C++: what the CPU of a test lacks is tested as well.
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
namespace emulated_amx {  // of bf16 alone
GemmTable Gemm();
AttentionTable Attention();
}  // namespace emulated_amx

// All that this CPU can run, and the emulated ones.
template <typename Table>
std::vector<Table> WithEmulated(std::vector<Table> tables, Table emulated) {
  emulated.instruction_set = "AVX512-BF16, emulated";
  tables.push_back(emulated);
  return tables;
}
inline std::vector<GemmTable> TestedGemmTables() {
  std::vector<GemmTable> tables = WithEmulated(GemmTables(), emulated::Gemm());
  GemmTable amx = emulated_amx::Gemm();
  amx.instruction_set = "AMX, emulated";
  amx.f32 = emulated::Gemm().f32;
  amx.pack_f32 = emulated::Gemm().pack_f32;
  amx.register_peak = emulated::Gemm().register_peak;
  tables.push_back(amx);
  return tables;
}
inline std::vector<AttentionTable> TestedAttentionTables() {
  std::vector<AttentionTable> tables = WithEmulated(AttentionTables(), emulated::Attention());
  AttentionTable amx = emulated_amx::Attention();
  amx.instruction_set = "AMX, emulated";
  amx.f32 = emulated::Attention().f32;
  tables.push_back(amx);
  return tables;
}

}  // namespace weft::train::kernels

#endif  // WEFT_TESTS_TRAINER_KERNELS_EMULATED_H_
