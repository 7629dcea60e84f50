// Values of a run's keys that are lists: of layers, axes, and datasets. Errors name the part of the
// list that is wrong, but not the key.
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

// "" for no data; a prefix by itself, which may have blanks and commas in it; or a blend, in which
// each prefix comes behind its weight: "0.7 data/web, 0.3 data/books". A text is a blend where its
// first word is a number and there is more. Weights are positive, and of any sum.
absl::StatusOr<DataBlend> ParseDataBlend(absl::string_view text);

}  // namespace weft::train

#endif  // WEFT_TRAINER_CONFIG_LISTS_H_
