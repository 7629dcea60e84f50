#include "tools/plan/plan_files.h"

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/write_file.h"
#include "topology/order/nccl_files.h"
#include "topology/order/rank_files.h"

namespace weft::plan {
namespace {

struct File {
  const char* name;
  absl::StatusOr<std::string> text;
};

std::vector<File> FilesOf(const Input& input, const Candidate& planned,
                          const OrderFileOptions& options) {
  topology::RankTable table = topology::TableOf(planned.order, *input.fabric);
  topology::NcclHost host;
  host.gpus = planned.order.blocks.gpus;
  host.nics = input.fabric->nics(input.hosts[0]);
  host.nvlink = input.job.node.nvlink;
  host.nic_prefix = options.nic_prefix;
  host.nic = input.fabric->link(input.fabric->Ports({input.hosts[0], 0})[0]).nominal;
  host.nic = host.nic * static_cast<double>(input.fabric->Ports({input.hosts[0], 0}).size());
  return {{"ranks.txt", topology::RankFileText(table)},
          {"slurm.hosts", topology::SlurmHostfileText(table)},
          {"openmpi.rankfile", topology::OpenMpiRankfileText(table, options.cores_per_rank)},
          {"torchrun.sh", topology::TorchrunText(table)},
          {"nccl-topo.xml", topology::NcclTopologyText(host)},
          {"nccl-graph.xml", topology::NcclGraphText(host)}};
}

}  // namespace

absl::StatusOr<std::vector<std::string>> WriteOrderFiles(const Input& input,
                                                         const Candidate& planned,
                                                         const OrderFileOptions& options,
                                                         const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("make folder ", folder));
  std::vector<std::string> files;
  for (const File& file : FilesOf(input, planned, options)) {
    std::string path = (std::filesystem::path(folder) / file.name).string();
    if (!file.text.ok()) {
      absl::FPrintF(stderr, "weft-plan: no %s: %s\n", file.name, file.text.status().message());
      // One of an earlier plan would be taken for this one's.
      std::filesystem::remove(path, error);
      continue;
    }
    WEFT_RETURN_IF_ERROR(WriteOutput(path, *file.text));
    files.push_back(std::move(path));
  }
  return files;
}

std::string LaunchLines(const Input& input, const Candidate& planned, const std::string& folder) {
  const int gpus = planned.order.blocks.gpus;
  const int hosts = planned.order.world() / gpus;
  const std::filesystem::path path(folder);
  std::string nccl, nccl_mpi;
  for (const auto& [name, file] : {std::pair("NCCL_TOPO_FILE", "nccl-topo.xml"),
                                   std::pair("NCCL_GRAPH_FILE", "nccl-graph.xml")}) {
    if (!std::filesystem::exists(path / file)) continue;
    absl::StrAppend(&nccl, " ", name, "=", (path / file).string());
    absl::StrAppend(&nccl_mpi, " -x ", name, "=", (path / file).string());
  }
  return absl::StrCat(
      "on every host, K its number:\n  weft-run --plan ", folder, " -n ", gpus, " --nnodes ", hosts,
      " --node-rank K --master-addr ", input.fabric->node(planned.order.HostOf(0)).name,
      " --master-port 29500 -- PROGRAM\nSlurm:\n  SLURM_HOSTFILE=", (path / "slurm.hosts").string(),
      " WEFT_PLAN=", folder, nccl, " srun -n ", planned.order.world(),
      " --distribution=arbitrary PROGRAM\nOpen MPI:\n  mpirun --map-by rankfile:file=",
      (path / "openmpi.rankfile").string(), " -x WEFT_PLAN=", folder, nccl_mpi, " PROGRAM\n");
}

}  // namespace weft::plan
