// A communicator's name where it has to be short: in its messages, and in keys of the store, whose
// length is bounded. The names of groups from which many ranks were left out are long.
#ifndef WEFT_COLLECTIVES_SHORT_NAME_H_
#define WEFT_COLLECTIVES_SHORT_NAME_H_

#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "topology/ecmp/fingerprint.h"

namespace weft::collectives {

inline constexpr size_t kShortNameMost = 200;

// `name`, or where that is longer its beginning and a fingerprint of all of it.
inline std::string ShortName(absl::string_view name) {
  if (name.size() <= kShortNameMost) return std::string(name);
  const std::string end = absl::StrCat("... ", topology::Fingerprint(name));
  return absl::StrCat(name.substr(0, kShortNameMost - end.size()), end);
}

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_SHORT_NAME_H_
