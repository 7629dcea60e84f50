// Where this process stands in its job, as far as the environment of its launcher says so: torchrun
// and weft-run, Open MPI, MPICH and Slurm.
#ifndef WEFT_PLUGINS_NCCL_JOB_PLACE_H_
#define WEFT_PLUGINS_NCCL_JOB_PLACE_H_

#include <optional>
#include <string>

namespace weft::nccl {

struct JobPlace {
  std::string job;          // empty: nobody gave it a name
  std::optional<int> rank;  // nothing: no launcher says
  int world_size = 0;       // 0: not known
};

JobPlace PlaceFromEnvironment();

}  // namespace weft::nccl

#endif  // WEFT_PLUGINS_NCCL_JOB_PLACE_H_
