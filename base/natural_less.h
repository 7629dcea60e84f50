// The order in which people list numbered things.
#ifndef WEFT_BASE_NATURAL_LESS_H_
#define WEFT_BASE_NATURAL_LESS_H_

#include "absl/strings/string_view.h"

namespace weft {

// "h2" before "h10": runs of digits compare as numbers of any length. A strict weak order in which
// different names are never equal.
bool NaturalLess(absl::string_view a, absl::string_view b);

}  // namespace weft

#endif  // WEFT_BASE_NATURAL_LESS_H_
