// NCCL's files for a host of a planned job: the topology that it would find (NCCL_TOPO_FILE) and
// the channels to use on it (NCCL_GRAPH_FILE).
//
// NCCL makes rings and trees between hosts of the order of ranks, which is what we plan; these
// files say what is inside a host, so that channel c leaves by NIC c and stays on its rail. They
// are for hosts that are all alike and have what NodeShape says: GPUs on one NVSwitch, GPUs and
// NICs in pairs under PCI switches, half on each of two CPUs. Where NCCL's own dump of the real
// host is at hand (NCCL_TOPO_DUMP_FILE), that is the better topology.
#ifndef WEFT_TOPOLOGY_ORDER_NCCL_FILES_H_
#define WEFT_TOPOLOGY_ORDER_NCCL_FILES_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/cost/job.h"

namespace weft::topology {

struct NcclHost {
  int gpus = 8;
  int nics = 8;
  Bandwidth nic;     // of one
  Bandwidth nvlink;  // of one GPU, one way
  std::string nic_prefix = "mlx5_";
};

// InvalidArgument: more than NCCL reads.
absl::StatusOr<std::string> NcclTopologyText(const NcclHost& host);
absl::StatusOr<std::string> NcclGraphText(const NcclHost& host);

// One channel of a graph file, as it is read back.
struct NcclChannel {
  int graph = 0;  // 0 ring, 1 tree
  int net_in = -1, net_out = -1;
  std::vector<int> gpus;
};
absl::StatusOr<std::vector<NcclChannel>> ParseNcclGraph(absl::string_view text);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ORDER_NCCL_FILES_H_
