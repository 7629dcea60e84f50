// Names of hosts as people and schedulers write them: Slurm's hostlists, and files of names.
//
//   node[001-064,070],gpu7,rack[1-2]n[01-04]      ranges keep the width of their first number
//
// A file has a name or a hostlist a line; what follows the first word of a line ("slots=8"), empty
// lines and comments (#) are skipped.
#ifndef WEFT_TOPOLOGY_JOB_HOSTLIST_H_
#define WEFT_TOPOLOGY_JOB_HOSTLIST_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::topology {

inline constexpr size_t kHostlistMost = size_t{1} << 20;  // names of one list

// In the order as written, repetitions kept. InvalidArgument says at which character and why.
absl::StatusOr<std::vector<std::string>> ExpandHostlist(absl::string_view text);
// The shortest list that expands to the same names in the same order.
std::string CompressHostlist(absl::Span<const std::string> names);

// `name` stands before the line number in errors.
absl::StatusOr<std::vector<std::string>> ParseHostFile(absl::string_view text,
                                                       absl::string_view name);
absl::StatusOr<std::vector<std::string>> ReadHostFile(const std::string& path);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_JOB_HOSTLIST_H_
