// Contradictions between the keys of a run, beyond what the table of keys allows for each alone.
#ifndef WEFT_TRAINER_CONFIG_CHECK_H_
#define WEFT_TRAINER_CONFIG_CHECK_H_

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/settings.h"
#include "trainer/config.h"

namespace weft::train {

// "ORIGIN: NAME = VALUE: WHAT", InvalidArgument. `name`: of a key.
absl::Status WrongValue(const Settings& settings, absl::string_view name, absl::string_view what);
// InvalidArgument for the first contradiction, as WrongValue has it. `config` has been read from
// `settings`.
absl::Status CheckConfig(const TrainConfig& config, const Settings& settings);

}  // namespace weft::train

#endif  // WEFT_TRAINER_CONFIG_CHECK_H_
