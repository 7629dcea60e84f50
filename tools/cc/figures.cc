#include "tools/cc/figures.h"

#include "absl/strings/str_cat.h"

namespace weft::cc {

std::string Header(const std::vector<std::string>& columns) {
  std::string names = "|", line = "|";
  for (const std::string& column : columns) {
    absl::StrAppend(&names, " ", column, " |");
    line += "---|";
  }
  return absl::StrCat(names, "\n", line, "\n");
}

const std::vector<FigureKind>& AllFigures() {
  static const std::vector<FigureKind> all = {
      {"swift-incast", "Swift: incast of 100 and 1,000 flows holds the queue at its target",
       SwiftIncast},
      {"dcqcn", "DCQCN: fixed point of the fluid model, fairness, convergence", DcqcnFixedPoint},
      {"median", "Swift and MSwift sprayed over paths of which one is congested", MedianOfDelays},
      {"dead-link", "path policies when a link dies under them", DeadLink},
      {"nscc", "NSCC and REPS on a permutation, beside the simulator's own UEC", NsccSprayed},
      {"hybrid", "all-to-all over PFC: DCQCN, Swift and the hybrid", HybridAllToAll}};
  return all;
}

}  // namespace weft::cc
