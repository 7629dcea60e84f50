#include "trainer/forecast/memory_check.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/host_name.h"
#include "base/status.h"
#include "trainer/forecast/memory_estimate.h"
#include "trainer/memory/memory.h"
#include "trainer/parallel/core_share.h"

namespace weft::train {
namespace {

// What the ranks of each place need together, and the least memory that one of them sees there.
struct PlaceNeed {
  MemoryNeed need;
  Bytes memory;
};

// By place, a name that is the same on the ranks that share it. All ranks call it together.
absl::StatusOr<std::map<std::string, PlaceNeed>> GatherNeeds(const std::string& mine, Bytes tensors,
                                                             Bytes program, Bytes memory,
                                                             Group& world) {
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> all,
                        world.Gather(absl::StrCat(tensors.count(), " ", program.count(), " ",
                                                  memory.count(), " ", mine)));
  std::map<std::string, PlaceNeed> places;
  for (const std::string& text : all) {
    const std::vector<std::string> fields = absl::StrSplit(text, absl::MaxSplits(' ', 3));
    std::array<int64_t, 3> numbers = {};
    for (size_t i = 0; i < numbers.size(); ++i) (void)absl::SimpleAtoi(fields[i], &numbers[i]);
    PlaceNeed& place = places[fields[3]];
    place.need.tensors += Bytes(numbers[0]);
    place.need.program += Bytes(numbers[1]);
    const Bytes seen(numbers[2]);
    place.memory = place.need.ranks == 0 ? seen : std::min(place.memory, seen);
    ++place.need.ranks;
  }
  return places;
}

}  // namespace

Bytes ProgramMemory() {
  static const Bytes before = AnonymousMemory();
  return before;
}

Bytes HostMemory(const TrainConfig& config) {
  return config.host_memory.count() > 0 ? config.host_memory : MachineMemory();
}

absl::Status CheckFits(const TrainConfig& config, const std::string& host, const MemoryNeed& need,
                       Bytes memory) {
  if (memory.count() == 0 || need.total() <= memory) return absl::OkStatus();
  return AsAgreed(absl::InvalidArgumentError(absl::StrFormat(
      "%s: %d ranks need %.0f MiB for tensors and copies of the state and %.0f MiB for the "
      "programs, together %.0f MiB; "
      "%s %.0f MiB. Fewer ranks a host, a smaller train.micro_batch, train.recompute = full or a "
      "higher parallel.zero take less",
      host, need.ranks, need.tensors / MiB(1), need.program / MiB(1), need.total() / MiB(1),
      config.host_memory.count() > 0 ? "train.host_memory is" : "the machine has",
      memory / MiB(1))));
}

bool TakeLessMemory(TrainConfig& config, const TrainConfig& given) {
  if (GiveBackMemory(config, given)) return true;
  return std::exchange(config.pack_weights, false);
}

absl::Status CheckHostMemory(const TrainConfig& config, const StepPlan& plan, int stage,
                             int tensor_rank, bool keeps_snapshots, Group& world) {
  const absl::StatusOr<MemoryEstimate> mine =
      EstimateMemory(config, plan, stage, tensor_rank, keeps_snapshots);
  WEFT_RETURN_IF_ERROR(world.Agree(mine.status()));
  WEFT_ASSIGN_OR_RETURN(const auto hosts,
                        GatherNeeds(absl::StrCat("host ", HostName()), mine->total(),
                                    ProgramMemory(), HostMemory(config), world));
  for (const auto& [host, place] : hosts) {
    WEFT_RETURN_IF_ERROR(CheckFits(config, host, place.need, place.memory));
  }
  return absl::OkStatus();
}

absl::Status CheckDeviceMemory(const TrainConfig& config, const StepPlan& plan, int stage,
                               int tensor_rank, const std::string& gpu, const DeviceMemory& memory,
                               Group& world) {
  const absl::StatusOr<MemoryEstimate> mine =
      EstimateMemory(config, plan, stage, tensor_rank, /*keeps_snapshots=*/false);
  WEFT_RETURN_IF_ERROR(world.Agree(mine.status()));
  WEFT_ASSIGN_OR_RETURN(const auto gpus,
                        GatherNeeds(absl::StrCat("GPU ", gpu, " of host ", HostName()),
                                    mine->on_device(), Bytes(0), memory.free, world));
  for (const auto& [gpu_of_host, place] : gpus) {
    if (place.need.tensors <= place.memory) continue;
    return AsAgreed(absl::InvalidArgumentError(absl::StrFormat(
        "%s: %d ranks need %.0f MiB for tensors; %.0f MiB of it are free. Fewer ranks a GPU, a "
        "smaller train.micro_batch, train.recompute = full or a higher parallel.zero take less",
        gpu_of_host, place.need.ranks, place.need.tensors / MiB(1), place.memory / MiB(1))));
  }
  return absl::OkStatus();
}

}  // namespace weft::train
