// CPU masks as hwloc, NCCL and /sys write them.
#ifndef WEFT_TOPOLOGY_HOST_CPU_MASK_H_
#define WEFT_TOPOLOGY_HOST_CPU_MASK_H_

#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "topology/host/affinity.h"

namespace weft::topology {

// Words of 32 bits in hexadecimal, the highest first, separated by commas: "0000ffff,ffff0000"
// (NCCL, /sys) or "0x0000ffff,0xffff0000" (hwloc), where an empty word is zero. Nothing: malformed,
// hwloc's infinite "0xf...f", or a CPU beyond 8191, which no Linux has.
std::optional<CpuSet> ParseCpuMask(absl::string_view text);

// In NCCL's form: eight digits a word, without leading words of zero; no CPU: "00000000".
std::string CpuMaskText(const CpuSet& cpus);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_CPU_MASK_H_
