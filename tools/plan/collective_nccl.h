// weft-plan collective --nccl: the times of NCCL's own algorithms and protocols on a fabric, by the
// planner, and so what the NCCL tuner (plugins/nccl/tuner.h) asks for there.
#ifndef WEFT_TOOLS_PLAN_COLLECTIVE_NCCL_H_
#define WEFT_TOOLS_PLAN_COLLECTIVE_NCCL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "tools/plan/collective_group.h"

namespace weft::plan {

// Prints a line for each size, the fastest first; and writes all of it as JSON where `json` names a
// file, or "-": prints that alone. InvalidArgument without a fabric, on one host, and for what NCCL
// has no tuned collective of.
absl::Status PlanNccl(const CollectiveGroup& group, absl::Span<const int64_t> sizes,
                      const std::string& json);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_COLLECTIVE_NCCL_H_
