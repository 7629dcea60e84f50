// The files of a plan directory: those of an order of ranks, which launchers and NCCL read, and
// those of paths, which transports read.
#ifndef WEFT_TOOLS_PLAN_PLAN_FILES_H_
#define WEFT_TOOLS_PLAN_PLAN_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/plan/input.h"

namespace weft::plan {

struct OrderFileOptions {
  int cores_per_rank = 1;            // in openmpi.rankfile
  std::string nic_prefix = "mlx5_";  // of NICs' names in nccl-topo.xml
};

// Makes the folder. Returns the paths of the files; what cannot be written for this order is left
// out, with the reason on standard error.
absl::StatusOr<std::vector<std::string>> WriteOrderFiles(const Input& input,
                                                         const Candidate& planned,
                                                         const OrderFileOptions& options,
                                                         const std::string& folder);

// How to start the job with the plan, for people: weft-run's line, Slurm's and mpirun's.
std::string LaunchLines(const Input& input, const Candidate& planned, const std::string& folder);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_PLAN_FILES_H_
