// Where programs keep what they have measured of this machine.
#ifndef WEFT_BASE_MACHINE_CACHE_H_
#define WEFT_BASE_MACHINE_CACHE_H_

#include <istream>
#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// weft/KIND/PROCESSORS in $XDG_CACHE_HOME or ~/.cache. Empty without a home.
std::string MachineCacheFile(absl::string_view kind);

// PROCESSORS, of a text as /proc/cpuinfo has it: vendor, family, model, stepping and name of the
// first processor, and how many there are, as "AuthenticAMD-25-17-1-AMD-EPYC-x2". Virtual machines
// give processors of several generations one name. On ARM: implementer, architecture, variant, part
// and revision.
std::string ProcessorsName(std::istream& cpuinfo, long processors);

}  // namespace weft

#endif  // WEFT_BASE_MACHINE_CACHE_H_
