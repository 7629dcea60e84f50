// The NCCL communicators of a layout's groups, made for real: a process a rank on this host's GPUs,
// all unique ids from one exchange over a store of ours (collectives/cuda/nccl_groups.h), first
// each group from its ids, then the same groups split off a communicator of all ranks. Every one of
// them adds up ones, which must come to its size.
#ifndef WEFT_TOOLS_INIT_NCCL_H_
#define WEFT_TOOLS_INIT_NCCL_H_

#include <string>

#include "absl/status/statusor.h"
#include "tools/init/options.h"

namespace weft::init {

// Seconds, the largest over ranks, one phase after the other.
struct NcclMeasurement {
  int ranks = 0;
  std::string device;    // "8 x NVIDIA H200, CUDA 13.0, NCCL 2.28.9"
  bool splits = false;   // this NCCL has ncclCommSplit
  bool scales = false;   // and ncclCommInitRankScalable
  bool shared = false;   // several ranks share a GPU: they find each other through the network
  double exchange = 0;   // all ranks' records and unique ids are everywhere
  double from_ids = 0;   // a communicator a group, from the group's ids
  double first_sum = 0;  // the first all-reduce on each of them
  double world = 0;      // a communicator of all ranks
  double split = 0;      // the groups once more, split off it; where NCCL cannot, from their ids
};

// kUnavailable: there is no GPU, or no library of CUDA code; the message says what is missing.
absl::StatusOr<NcclMeasurement> MeasureNccl(const Options& options);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_NCCL_H_
