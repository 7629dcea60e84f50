// What of a run's config may not change when the run is resumed; a checkpoint keeps it.
#ifndef WEFT_TRAINER_RESUME_IDENTITY_H_
#define WEFT_TRAINER_RESUME_IDENTITY_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "trainer/config.h"

namespace weft::train {

// The part of TrainConfig::text that must stay as it is when a run is resumed: [model], seed,
// precision, global_batch and data.prefix, with its weights. Lines "name = value".
std::string ResumeIdentity(const TrainConfig& config);
// The config of a run, as far as its ResumeIdentity has it; all other keys have their defaults.
absl::StatusOr<TrainConfig> LoadIdentity(absl::string_view identity);
// What differs between two of them, "" when nothing does.
std::string DescribeDifference(absl::string_view before, absl::string_view now);

}  // namespace weft::train

#endif  // WEFT_TRAINER_RESUME_IDENTITY_H_
