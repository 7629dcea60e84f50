// How a rank's own bytes are told from parts of buffers within a shard.
#ifndef WEFT_TRAINER_CHECKPOINT_RANK_STATE_H_
#define WEFT_TRAINER_CHECKPOINT_RANK_STATE_H_

#include "absl/strings/string_view.h"

namespace weft::train {
inline constexpr absl::string_view kRankStatePrefix = "rank_state.";
}  // namespace weft::train

#endif  // WEFT_TRAINER_CHECKPOINT_RANK_STATE_H_
