#include "topology/job/collective_kind.h"

#include <array>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace weft::topology {

const char* ToString(CollectiveKind kind) {
  static constexpr std::array kNames = {
      "all_reduce", "all_gather", "reduce_scatter", "broadcast",    "reduce",  "gather",
      "scatter",    "all_to_all", "all_gather_v",   "all_to_all_v", "barrier", "send_recv"};
  static_assert(kNames.size() == static_cast<size_t>(CollectiveKind::kSendReceive) + 1);
  return kNames[static_cast<size_t>(kind)];
}

absl::StatusOr<CollectiveKind> ParseCollectiveKind(absl::string_view name,
                                                   absl::Span<const CollectiveKind> allowed) {
  std::vector<std::string> names;
  for (CollectiveKind kind : allowed) {
    if (name == ToString(kind)) return kind;
    names.emplace_back(ToString(kind));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("'", name, "' is no collective; there are ", absl::StrJoin(names, ", ")));
}

}  // namespace weft::topology
