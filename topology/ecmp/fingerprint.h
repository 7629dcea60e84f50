// A short name of a text, by which files that belong together know each other. No proof against
// people who want two texts of one name.
#ifndef WEFT_TOPOLOGY_ECMP_FINGERPRINT_H_
#define WEFT_TOPOLOGY_ECMP_FINGERPRINT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace weft::topology {

// 16 hexadecimal digits.
std::string Fingerprint(absl::string_view text);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_ECMP_FINGERPRINT_H_
