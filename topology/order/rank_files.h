// An order of ranks in the forms that launchers take. Each is written and read back here.
//
//   rank file   ours, for people and scripts: "rank host gpu" a line
//   Slurm       SLURM_HOSTFILE, for srun --distribution=arbitrary: the host of each task, a line a
//               task; a host's tasks take its GPUs in order of rank (SLURM_LOCALID)
//   Open MPI    a rankfile (mpirun --map-by rankfile:file=F, before 5.0 --rankfile F):
//               "rank 0=h12 slot=0-3"; slots are cores, shared out to the host's ranks
//   torchrun    a shell script that every host runs: its host's node rank, then torchrun
#ifndef WEFT_TOPOLOGY_ORDER_RANK_FILES_H_
#define WEFT_TOPOLOGY_ORDER_RANK_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/fabric/fabric.h"
#include "topology/order/rank_order.h"

namespace weft::topology {

struct RankRow {
  std::string host;
  int gpu = 0;
  bool operator==(const RankRow&) const = default;
};
using RankTable = std::vector<RankRow>;  // [rank]

RankTable TableOf(const RankOrder& order, const Fabric& fabric);
// The order of hosts with the same number of ranks each, as found in the table. InvalidArgument:
// two ranks on one GPU, a host with another number of ranks; NotFound: a host that the fabric
// lacks.
absl::StatusOr<RankOrder> OrderFromTable(const RankTable& table, const Fabric& fabric);

std::string RankFileText(const RankTable& table);
absl::StatusOr<RankTable> ParseRankFile(absl::string_view text, absl::string_view name);

// FailedPrecondition: on some host the GPUs do not rise with the ranks, which Slurm cannot express.
absl::StatusOr<std::string> SlurmHostfileText(const RankTable& table);
absl::StatusOr<RankTable> ParseSlurmHostfile(absl::string_view text, absl::string_view name);

// `cores_per_rank` > 0.
std::string OpenMpiRankfileText(const RankTable& table, int cores_per_rank);
// The GPU is the number of the rank's share of cores.
absl::StatusOr<RankTable> ParseOpenMpiRankfile(absl::string_view text, absl::string_view name,
                                               int cores_per_rank);

// FailedPrecondition: a host's ranks are not consecutive, which torchrun cannot express.
absl::StatusOr<std::string> TorchrunText(const RankTable& table);
absl::StatusOr<RankTable> ParseTorchrun(absl::string_view text, absl::string_view name);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ORDER_RANK_FILES_H_
