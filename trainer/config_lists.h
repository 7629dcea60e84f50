// Values of a run's keys that are lists: of layers, and of axes. Errors name the part of the list
// that is wrong, but not the key.
#ifndef WEFT_TRAINER_CONFIG_LISTS_H_
#define WEFT_TRAINER_CONFIG_LISTS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/config.h"

namespace weft::train {

// "all", "even", "odd", or numbers and ranges as 0-3,6: for each of `layers` layers, counted from
// 0, whether the list has it. Empty for "all".
absl::StatusOr<std::vector<bool>> ParseLayers(absl::string_view text, int64_t layers);
// "full", or of layers "full:0-3,selective:4-7", of which the later ones win: the kind of each of
// `layers` layers.
absl::StatusOr<std::vector<RecomputeKind>> ParseRecompute(absl::string_view text, int64_t layers);
// "all", "none", or axes as data,tensor.
absl::StatusOr<OverlapAxes> ParseOverlap(absl::string_view text);

}  // namespace weft::train

#endif  // WEFT_TRAINER_CONFIG_LISTS_H_
