// What is given for a run (presets, file, overrides) as one set of values for all keys.
#ifndef WEFT_TRAINER_CONFIG_SETTINGS_H_
#define WEFT_TRAINER_CONFIG_SETTINGS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/settings.h"

namespace weft::train {

// Values of TrainSettings(), each the last that is given for its key: the default, model.preset,
// model.style, the pairs of the run's `preset` (a name of Presets(), or empty), the file at `path`
// (may be empty), `overrides` ("name=value"). InvalidArgument names what gave a value that is not
// allowed.
absl::StatusOr<Settings> GivenSettings(absl::string_view preset, const std::string& path,
                                       const std::vector<std::string>& overrides);

}  // namespace weft::train

#endif  // WEFT_TRAINER_CONFIG_SETTINGS_H_
