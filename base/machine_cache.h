// Where programs keep what they have measured of this machine.
#ifndef WEFT_BASE_MACHINE_CACHE_H_
#define WEFT_BASE_MACHINE_CACHE_H_

#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// weft/KIND/PROCESSORS in $XDG_CACHE_HOME or ~/.cache, PROCESSORS the name of this machine's
// processors and their number. Empty without a home.
std::string MachineCacheFile(absl::string_view kind);

}  // namespace weft

#endif  // WEFT_BASE_MACHINE_CACHE_H_
