// Lists of names as Slurm writes them: "h[0-3,7],leaf[00-15]". Brackets may stand anywhere in a
// name, also several times: "rack[0-1]node[0-7]" varies the last fastest.
#ifndef WEFT_TOPOLOGY_FABRIC_NAME_LIST_H_
#define WEFT_TOPOLOGY_FABRIC_NAME_LIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::topology {

// InvalidArgument says what is wrong with `text`. ResourceExhausted: more than `limit` names;
// found before they are made.
absl::StatusOr<std::vector<std::string>> ExpandNames(absl::string_view text, size_t limit);

// The same names in the same order, as short as runs of consecutive numbers allow. The names have
// no brackets, commas or blanks.
std::string CompressNames(absl::Span<const std::string> names);

// "h12-ib": "h", "12", "-ib". Without digits: all is prefix. Of several numbers the last counts.
struct NumberedName {
  absl::string_view prefix, digits, suffix;
};
NumberedName SplitNumber(absl::string_view name);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_NAME_LIST_H_
