#include "tools/bw/link/flows.h"

#include "absl/strings/str_cat.h"

namespace weft::link_bw {

absl::StatusOr<std::vector<Flow>> FlowsOf(const Load& load, int ranks) {
  const bool paired = load.pattern == Pattern::kOneWay || load.pattern == Pattern::kBothWays;
  if (ranks < 2) {
    return absl::InvalidArgumentError(
        "there is nobody to exchange with: weft-bw link --ranks 2, weft-run -n 2 -- weft-bw link, "
        "or weft-bw link HOST where another weft-bw link waits on HOST");
  }
  if (load.root >= ranks) {
    return absl::InvalidArgumentError(
        absl::StrCat("--root ", load.root, " is not one of ", ranks, " ranks"));
  }
  if (load.test != Test::kSteps && paired && ranks % 2 != 0) {
    return absl::InvalidArgumentError(absl::StrCat("--pattern ", ToString(load.pattern),
                                                   " wants an even number of ranks, not ", ranks));
  }
  std::vector<Flow> flows;
  for (int from = 0; from < ranks; ++from) {
    for (int to = 0; to < ranks; ++to) {
      if (from == to) continue;
      const int half = ranks / 2;
      bool wanted = false;
      switch (load.test == Test::kSteps ? Pattern::kAllPairs : load.pattern) {
        case Pattern::kOneWay:
          wanted = to == from + half;
          break;
        case Pattern::kBothWays:
          wanted = to == from + half || from == to + half;
          break;
        case Pattern::kManyToOne:
          wanted = to == load.root;
          break;
        case Pattern::kOneToMany:
          wanted = from == load.root;
          break;
        case Pattern::kAllPairs:
          wanted = load.test != Test::kSteps || to == (from + 1) % ranks;
          break;
      }
      if (wanted) flows.push_back({from, to});
    }
  }
  return flows;
}

}  // namespace weft::link_bw
