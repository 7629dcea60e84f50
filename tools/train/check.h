// weft-train --check.
#ifndef WEFT_TOOLS_TRAIN_CHECK_H_
#define WEFT_TOOLS_TRAIN_CHECK_H_

#include "absl/status/status.h"
#include "tools/train/command.h"

namespace weft::train {

// Prints on standard output everything that can be said before a rank trains, and draws the
// pipeline's schedule where that is asked for. InvalidArgument: the run is not possible, with the
// reason.
absl::Status CheckRun(const Command& command);

}  // namespace weft::train

#endif  // WEFT_TOOLS_TRAIN_CHECK_H_
