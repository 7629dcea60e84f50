#include "collectives/cuda/nccl_groups.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

absl::Status CheckIds(const JobGroup& group) {
  if (group.unique_ids.empty()) {
    return absl::InvalidArgumentError(
        "the exchange brought no unique ids; give CreateGroups() make_unique_id");
  }
  for (const std::string& id : group.unique_ids) {
    if (id.size() == kWeftNcclIdBytes) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("a unique id of ", id.size(), " bytes; NCCL's have ", kWeftNcclIdBytes));
  }
  return absl::OkStatus();
}

absl::StatusOr<WeftNcclCommunicator*> MakeOne(const NcclMaker& nccl, const JobGroup& group,
                                              WeftNcclCommunicator* world) {
  const topology::MeshGroup& g = group.group;
  // Groups of an axis share no rank, so that their first members tell them apart.
  if (world != nullptr && nccl.split) return nccl.split(world, g.members[0].value(), g.position);
  WEFT_RETURN_IF_ERROR(CheckIds(group));
  return nccl.init(static_cast<int>(g.members.size()), g.position, group.unique_ids);
}

}  // namespace

NcclMaker NcclMakerOf(const Device& device) {
  NcclMaker maker;
  maker.init = [&device](
                   int size, int rank,
                   const std::vector<std::string>& ids) -> absl::StatusOr<WeftNcclCommunicator*> {
    std::string all;
    for (const std::string& id : ids) all += id;
    WeftNcclCommunicator* made = nullptr;
    WEFT_RETURN_IF_ERROR(device.Check(
        device.calls().NcclInit(&made, size, reinterpret_cast<const uint8_t*>(all.data()),
                                static_cast<int>(ids.size()), rank),
        absl::StrCat("make a communicator of ", size, " ranks as rank ", rank)));
    return made;
  };
  int splits = 0;
  int scales = 0;
  if (device.calls().NcclCan(&splits, &scales) == 0 && splits != 0) {
    maker.split = [&device](WeftNcclCommunicator* parent, int color,
                            int key) -> absl::StatusOr<WeftNcclCommunicator*> {
      WeftNcclCommunicator* made = nullptr;
      WEFT_RETURN_IF_ERROR(device.Check(device.calls().NcclSplit(parent, color, key, &made),
                                        absl::StrCat("split off the group of rank ", color)));
      return made;
    };
  }
  maker.abort = [&device](WeftNcclCommunicator* made) { (void)device.calls().NcclAbort(&made, 1); };
  return maker;
}

std::function<absl::StatusOr<std::string>()> UniqueIdsOf(const Device& device) {
  return [&device]() -> absl::StatusOr<std::string> {
    std::string id(kWeftNcclIdBytes, '\0');
    WEFT_RETURN_IF_ERROR(device.Check(
        device.calls().NcclUniqueId(reinterpret_cast<uint8_t*>(id.data())), "make a unique id"));
    return id;
  };
}

absl::StatusOr<std::vector<WeftNcclCommunicator*>> MakeCommunicators(const NcclMaker& nccl,
                                                                     const JobGroups& job,
                                                                     WeftNcclCommunicator* world) {
  std::vector<WeftNcclCommunicator*> made;
  for (const JobGroup& group : job.groups) {
    if (group.group.members.size() < 2) {  // on every rank: an axis has groups of one size
      made.push_back(nullptr);
      continue;
    }
    auto one = MakeOne(nccl, group, world);
    if (!one.ok()) {
      for (WeftNcclCommunicator* communicator : made) {
        if (communicator != nullptr && nccl.abort) nccl.abort(communicator);
      }
      return Annotate(one.status(), absl::StrCat("group ", group.group.index, " of ",
                                                 ToString(group.group.axes)));
    }
    made.push_back(*one);
  }
  return made;
}

}  // namespace weft::collectives
