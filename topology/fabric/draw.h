// Pictures of a fabric: SVG with tiers as rows, hosts below; and Graphviz' DOT.
//
// What is too much for a row is drawn together: hosts under the same leaves as one box, then
// switches by pod and plane, then neighbours. Cables between two boxes are one line, as wide as
// their bandwidth. So 12,288 hosts fit a page and some tens of kilobytes.
//
// With a value for each link (a heat map) every line is two, one a direction, coloured by the
// largest value of the links that it stands for; its tooltip names that link.
#ifndef WEFT_TOPOLOGY_FABRIC_DRAW_H_
#define WEFT_TOPOLOGY_FABRIC_DRAW_H_

#include <string>

#include "absl/types/span.h"
#include "topology/fabric/fabric.h"

namespace weft::topology {

struct DrawOptions {
  std::string title;
  int width = 1200;    // pixels; at least 300
  int row_limit = 48;  // boxes of a row, 1 to 500
  // [link] any number, as a utilisation; NaN: nothing to show. Empty: no heat map.
  absl::Span<const double> values;
  double value_max = 1;             // that has the hottest colour; above it is black
  std::string value_name = "load";  // in legend and tooltips
};

std::string DrawSvg(const Fabric& fabric, const DrawOptions& options = {});

// Every node and cable; for `dot -Tsvg` of small fabrics. Cables that are down are dashed.
std::string ToDot(const Fabric& fabric);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_DRAW_H_
