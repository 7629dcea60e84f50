// The NCCL communicators of a job's groups, from what one exchange has brought (fast_init.h): no
// store is asked, and nobody waits but within NCCL.
//
// With a communicator of the whole world, the groups of an axis are its parts, and are split off it
// where NCCL can: their ranks find each other through connections that are there. Without, or with
// an older NCCL, each group is made from its own unique ids. The world's own comes from an exchange
// of a mesh of one axis ("dp16384").
#ifndef WEFT_COLLECTIVES_CUDA_NCCL_GROUPS_H_
#define WEFT_COLLECTIVES_CUDA_NCCL_GROUPS_H_

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/cuda/device.h"
#include "collectives/cuda/device_table.h"
#include "collectives/rendezvous/fast_init.h"

namespace weft::collectives {

// What makes communicators: a device's NCCL, or a test's.
struct NcclMaker {
  // `ids`: one a block of ranks, each kWeftNcclIdBytes.
  std::function<absl::StatusOr<WeftNcclCommunicator*>(int size, int rank,
                                                      const std::vector<std::string>& ids)>
      init;
  // Null: this NCCL cannot.
  std::function<absl::StatusOr<WeftNcclCommunicator*>(WeftNcclCommunicator* parent, int color,
                                                      int key)>
      split;
  std::function<void(WeftNcclCommunicator*)> abort;
};
// Makes NCCL communicators on the GPU that this thread has selected; the device outlives it.
NcclMaker NcclMakerOf(const Device& device);
// For FastInitOptions::make_unique_id.
std::function<absl::StatusOr<std::string>()> UniqueIdsOf(const Device& device);

// In the order of job.groups, which is that of the axes: all ranks of a group make it at the same
// place of that order. Groups of one rank get none: null. `world`: null, or a communicator of all
// ranks of the layout in the order of their numbers. Blocks until NCCL has made each. On an error
// those that were made are aborted; kInvalidArgument: the exchange brought no unique ids, or some
// of a wrong size.
absl::StatusOr<std::vector<WeftNcclCommunicator*>> MakeCommunicators(
    const NcclMaker& nccl, const JobGroups& job, WeftNcclCommunicator* world = nullptr);

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_CUDA_NCCL_GROUPS_H_
