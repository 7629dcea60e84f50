// Bus bandwidth of algorithms over sizes, as an SVG: a line an algorithm, and circles at the
// planner's choices. Of several groups, a panel each.
#ifndef WEFT_TOOLS_PLAN_COLLECTIVE_PICTURE_H_
#define WEFT_TOOLS_PLAN_COLLECTIVE_PICTURE_H_

#include <string>
#include <vector>

#include "absl/types/span.h"

namespace weft::plan {

struct Picture {
  struct Point {
    double bytes = 0, busbw = 0;  // GB/s
    bool chosen = false;
  };
  struct Line {
    std::string name;
    std::vector<Point> points;
  };

  std::string kind;                   // of the collective
  std::string group;                  // the title of a picture of one
  std::string ranks, fabric;          // of a panel: "16 ranks on 16 hosts", the fabric's name
  std::string measure = "predicted";  // or "simulated"
  std::vector<Line> lines;

  void Add(const std::string& name, double bytes, double busbw, bool chosen);
};

// Both axes logarithmic, and the same in all panels, as is the colour of an algorithm. Points
// without bytes or bandwidth are left out; lines far below the best are drawn to where the axis
// ends. `pictures` have a kind and a measure in common, and are at least one.
std::string DrawPictures(absl::Span<const Picture> pictures);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_COLLECTIVE_PICTURE_H_
