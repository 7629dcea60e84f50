// Which of the loops that are compiled once for each instruction set this CPU can run.
#ifndef WEFT_TRAINER_KERNELS_INSTRUCTION_SETS_H_
#define WEFT_TRAINER_KERNELS_INSTRUCTION_SETS_H_

#include <vector>

// The functions `make` of all instruction sets but AMX, which has bf16 alone, for TablesHere().
#if defined(__x86_64__)
#define WEFT_KERNEL_SETS(make) &avx512bf16::make, WEFT_KERNEL_SETS_WITHOUT_BF16(make)
#define WEFT_KERNEL_SETS_WITHOUT_BF16(make) &avx512::make, &avx2::make, &plain::make
#else
#define WEFT_KERNEL_SETS(make) nullptr, WEFT_KERNEL_SETS_WITHOUT_BF16(make)
#define WEFT_KERNEL_SETS_WITHOUT_BF16(make) nullptr, nullptr, &plain::make
#endif

namespace weft::train::kernels {

enum class InstructionSet { kBaseline, kAvx2, kAvx512, kAvx512Bf16, kAmx };

// Asks the kernel, once a process, for the registers of AMX (arch_prctl(2), Linux 5.16).
bool KernelGivesAmx();

// With all parts of it that the loops are compiled for.
inline bool CpuHas(InstructionSet set) {
#if defined(__x86_64__)
  switch (set) {
    case InstructionSet::kAmx:
      return CpuHas(InstructionSet::kAvx512Bf16) && __builtin_cpu_supports("amx-tile") &&
             __builtin_cpu_supports("amx-bf16") && KernelGivesAmx();
    case InstructionSet::kAvx512Bf16:
      return CpuHas(InstructionSet::kAvx512) && __builtin_cpu_supports("avx512bf16");
    case InstructionSet::kAvx512:
      return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    case InstructionSet::kAvx2:
      return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case InstructionSet::kBaseline:
      break;
  }
#endif
  return set == InstructionSet::kBaseline;
}

// Whether this CPU multiplies bf16 in pairs (AVX512-BF16) faster than floats: Zen 4 and 5 do twice
// as much in a cycle; Intel's cores, which leave bf16 to AMX, half as much. Measured once a
// process, in about 3 ms.
bool MultipliesPairsFast();

// The tables of all sets that this CPU has, the best first.
template <typename Table>
std::vector<Table> TablesHere(Table (*avx512bf16)(), Table (*avx512)(), Table (*avx2)(),
                              Table (*baseline)()) {
  std::vector<Table> tables;
  auto add = [&tables](InstructionSet set, Table (*make)(), const char* name) {
    if (make == nullptr || !CpuHas(set)) return;
    tables.push_back(make());
    tables.back().instruction_set = name;
  };
  const bool pairs_first = MultipliesPairsFast();
  if (pairs_first) add(InstructionSet::kAvx512Bf16, avx512bf16, "AVX512-BF16");
  add(InstructionSet::kAvx512, avx512, "AVX-512");
  if (!pairs_first) add(InstructionSet::kAvx512Bf16, avx512bf16, "AVX512-BF16");
  add(InstructionSet::kAvx2, avx2, "AVX2");
  add(InstructionSet::kBaseline, baseline, "baseline");
  return tables;
}

// Puts `amx`, which has bf16 alone, before `tables`; its floats are those of `floats`.
template <typename Table>
void PutAmxFirst(Table amx, const Table& floats, std::vector<Table>& tables) {
  amx.instruction_set = "AMX";
  amx.f32 = floats.f32;
  tables.insert(tables.begin(), amx);
}

}  // namespace weft::train::kernels

#endif  // WEFT_TRAINER_KERNELS_INSTRUCTION_SETS_H_
