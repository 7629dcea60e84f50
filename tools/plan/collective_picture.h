// Bus bandwidth of algorithms over sizes, as an SVG: a line an algorithm, and circles at the
// planner's choices.
#ifndef WEFT_TOOLS_PLAN_COLLECTIVE_PICTURE_H_
#define WEFT_TOOLS_PLAN_COLLECTIVE_PICTURE_H_

#include <string>
#include <vector>

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

  std::string title;
  std::string measure = "predicted";  // or "simulated"
  std::vector<Line> lines;

  void Add(const std::string& name, double bytes, double busbw, bool chosen);
};

// Both axes logarithmic. Points without bytes or bandwidth are left out; lines whose every point is
// below a thousandth of the best at its size are drawn to where the axis ends.
std::string DrawPicture(const Picture& picture);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_COLLECTIVE_PICTURE_H_
