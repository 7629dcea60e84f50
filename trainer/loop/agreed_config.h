// The config of a run on all of its ranks, which compute one model only where it is the same on
// each: what they were given, and what it leaves to be chosen by the cores of the hosts.
#ifndef WEFT_TRAINER_LOOP_AGREED_CONFIG_H_
#define WEFT_TRAINER_LOOP_AGREED_CONFIG_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/config.h"
#include "trainer/groups/agreement.h"
#include "trainer/groups/parallel_groups.h"
#include "trainer/parallel/core_share.h"

namespace weft::train {

// All ranks call it together. FailedPrecondition, on all ranks, with the first rank whose config is
// not rank 0's, and the difference.
absl::Status CheckSameConfig(const TrainConfig& config, Agreement& world);

// Chooses what `config` leaves open and the number of cores decides (FitToCores), alike on all
// ranks, which call it together. Where some rank has been in the run before, as then: sums of other
// micro-batches have other last bits. `threads`: compute threads of this rank; `before`:
// CoreChoiceToWord of the run so far, empty on a rank that is new. Returns how the ranks share the
// cores. DataLoss where a rank sent something else.
absl::StatusOr<CoreShare> ChooseByCores(TrainConfig& config, const ParallelGroups& groups,
                                        int threads, absl::string_view before);

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_AGREED_CONFIG_H_
