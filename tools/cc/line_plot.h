// Lines over a common axis as SVG: no script, no font beyond the viewer's own, some kilobytes.
#ifndef WEFT_TOOLS_CC_LINE_PLOT_H_
#define WEFT_TOOLS_CC_LINE_PLOT_H_

#include <string>
#include <utility>
#include <vector>

namespace weft::cc {

struct Line {
  std::string name;
  std::vector<std::pair<double, double>> points;  // by rising x
  bool dashed = false;                            // what theory says
};

struct LinePlot {
  std::string title, x_name, y_name;  // with units
  std::vector<Line> lines;            // at most eight have a colour of their own
  double y_max = 0;                   // 0: of the points
};

// At most some 400 points a line are drawn: of more, the means of groups.
std::string RenderSvg(const LinePlot& plot);

}  // namespace weft::cc

#endif  // WEFT_TOOLS_CC_LINE_PLOT_H_
