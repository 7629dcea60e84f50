// The figures of docs/congestion-control.md: each runs controllers in the simulator against what
// their papers say and gives a table and pictures.
#ifndef WEFT_TOOLS_CC_FIGURES_H_
#define WEFT_TOOLS_CC_FIGURES_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/cc/line_plot.h"

namespace weft::cc {

struct Figure {
  std::string table;  // Markdown
  std::vector<std::pair<std::string, LinePlot>>
      pictures;  // by the name of their file, without .svg
};

// The two lines with which a Markdown table begins.
std::string Header(const std::vector<std::string>& columns);

struct FigureKind {
  std::string name, meaning;
  std::function<absl::StatusOr<Figure>()> make;
};
const std::vector<FigureKind>& AllFigures();

// figures_controllers.cc, figures_paths.cc
absl::StatusOr<Figure> SwiftIncast();
absl::StatusOr<Figure> DcqcnFixedPoint();
absl::StatusOr<Figure> MedianOfDelays();
absl::StatusOr<Figure> DeadLink();
absl::StatusOr<Figure> NsccSprayed();
absl::StatusOr<Figure> HybridAllToAll();

}  // namespace weft::cc

#endif  // WEFT_TOOLS_CC_FIGURES_H_
