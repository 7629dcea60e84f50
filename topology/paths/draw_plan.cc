#include "topology/paths/draw_plan.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/xml_text.h"
#include "topology/paths/plan_text.h"

namespace weft::topology {
namespace {

constexpr size_t kNodesMost = 64;
constexpr int kCell = 26, kLeft = 90, kTop = 90, kGap = 80;
constexpr std::array kColours = {"#1b6ca8", "#c0392b", "#2e8b57", "#8e44ad", "#d68910", "#16a085"};

// White to red, dark where a link is twice as busy as the fullest one after planning.
std::string Heat(double share) {
  const double x = std::clamp(share, 0.0, 2.0) / 2;
  return absl::StrFormat("rgb(%d,%d,%d)", static_cast<int>(255 - 75 * x),
                         static_cast<int>(250 - 220 * x), static_cast<int>(240 - 215 * x));
}

class Drawing {
 public:
  explicit Drawing(const Fabric& fabric) : fabric_(fabric) {
    for (NodeId id : fabric.switches()) {
      std::vector<NodeId>* row = fabric.node(id).tier == 1   ? &leaves_
                                 : fabric.node(id).tier == 2 ? &spines_
                                                             : nullptr;
      if (row != nullptr && row->size() < kNodesMost) row->push_back(id);
    }
  }

  std::string Draw(absl::Span<const PlannedPath> before, absl::Span<const PlannedPath> after,
                   const DrawPlanOptions& options) {
    const std::vector<double> b = LinkSeconds(fabric_, before), a = LinkSeconds(fabric_, after);
    const double unit = std::max(1e-12, Fullest(a));
    const int map_width = kLeft + static_cast<int>(spines_.size()) * kCell;
    const int map_height = kTop + static_cast<int>(leaves_.size()) * kCell;
    width_ = std::max(2 * map_width + kGap, 700);
    Text(20, 28, options.title, 16);
    Map(0, b, unit, absl::StrFormat("before: fullest %.3g ms", Fullest(b) * 1e3));
    Map(map_width + kGap, a, unit, absl::StrFormat("planned: fullest %.3g ms", Fullest(a) * 1e3));
    Text(20, map_height + 22,
         "left half of a cell: up to the spine; right half: down from it; red: twice the fullest "
         "link of the plan",
         11);
    const int end = Rings(map_height + 60, after, options.flows_most);
    return absl::StrCat(
        absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                        "font-family=\"sans-serif\"><rect width=\"100%%\" height=\"100%%\" "
                        "fill=\"white\"/>\n",
                        width_, end),
        out_, "</svg>\n");
  }

 private:
  double Fullest(const std::vector<double>& seconds) const {
    double fullest = 0;
    for (int i = 0; i < fabric_.links(); ++i) {
      if (fabric_.link(LinkId(i)).nic < 0) {
        fullest = std::max(fullest, seconds[static_cast<size_t>(i)]);
      }
    }
    return fullest;
  }

  void Text(int x, int y, const std::string& text, int size, const char* more = "") {
    absl::StrAppendFormat(&out_, "<text x=\"%d\" y=\"%d\" font-size=\"%d\" %s>%s</text>\n", x, y,
                          size, more, XmlText(text));
  }

  double Busy(NodeId from, NodeId to, const std::vector<double>& seconds) const {
    double most = -1;
    for (LinkId id : fabric_.LinksFrom(from)) {
      if (fabric_.link(id).target == to) most = std::max(most, seconds[id.index()]);
    }
    return most;
  }

  void Map(int x0, const std::vector<double>& seconds, double unit, const std::string& title) {
    Text(x0 + kLeft, kTop - 40, title, 13);
    for (size_t s = 0; s < spines_.size(); ++s) {
      const int x = x0 + kLeft + static_cast<int>(s) * kCell + kCell / 2;
      Text(x, kTop - 6, fabric_.node(spines_[s]).name, 9,
           absl::StrFormat("transform=\"rotate(-35 %d %d)\"", x, kTop - 6).c_str());
    }
    for (size_t l = 0; l < leaves_.size(); ++l) {
      const int y = kTop + static_cast<int>(l) * kCell;
      Text(x0 + kLeft - 6, y + kCell - 9, fabric_.node(leaves_[l]).name, 10, "text-anchor=\"end\"");
      for (size_t s = 0; s < spines_.size(); ++s) {
        const int x = x0 + kLeft + static_cast<int>(s) * kCell;
        const double up = Busy(leaves_[l], spines_[s], seconds);
        const double down = Busy(spines_[s], leaves_[l], seconds);
        if (up < 0) continue;
        for (const auto& [at, value] : {std::pair(x, up), std::pair(x + kCell / 2, down)}) {
          absl::StrAppendFormat(&out_,
                                "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" "
                                "stroke=\"#ddd\"><title>%.4g ms</title></rect>\n",
                                at, y, kCell / 2, kCell, Heat(value / unit), value * 1e3);
        }
      }
    }
  }

  // Hosts, first switches and spines in three rows, each flow a line through the switches that it
  // takes. Returns where it ends.
  int Rings(int y0, absl::Span<const PlannedPath> paths, size_t most) {
    std::map<NodeId, std::pair<int, int>> place;
    const auto row = [&](absl::Span<const NodeId> nodes, int y) {
      const double step = (width_ - 80.0) / static_cast<double>(std::max<size_t>(1, nodes.size()));
      for (size_t i = 0; i < nodes.size(); ++i) {
        place[nodes[i]] = {static_cast<int>(40 + step * (static_cast<double>(i) + 0.5)), y};
      }
    };
    row(spines_, y0 + 20);
    row(leaves_, y0 + 140);
    row(fabric_.hosts(), y0 + 220);
    for (size_t i = 0; i < paths.size() && i < most; ++i) {
      std::string points;
      const auto add = [&](NodeId node) {
        auto found = place.find(node);
        if (found == place.end()) return;
        absl::StrAppend(&points, found->second.first, ",", found->second.second, " ");
      };
      add(paths[i].source.host);
      for (LinkId link : paths[i].links) add(fabric_.link(link).target);
      absl::StrAppendFormat(&out_,
                            "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\" "
                            "stroke-opacity=\"0.55\" stroke-width=\"1.6\"/>\n",
                            points, kColours[paths[i].flow % kColours.size()]);
    }
    for (const auto& [node, at] : place) {
      absl::StrAppendFormat(&out_, "<circle cx=\"%d\" cy=\"%d\" r=\"3.5\" fill=\"#333\"/>\n",
                            at.first, at.second);
      const bool is_host = fabric_.node(node).kind == NodeKind::kHost;
      if (fabric_.hosts().size() <= kNodesMost || !is_host) {
        Text(at.first, at.second + (is_host ? 16 : -7), fabric_.node(node).name, 9,
             "text-anchor=\"middle\"");
      }
    }
    return y0 + 260;
  }

  const Fabric& fabric_;
  std::vector<NodeId> leaves_, spines_;
  int width_ = 700;
  std::string out_;
};

}  // namespace

std::string DrawPlan(const Fabric& fabric, absl::Span<const PlannedPath> before,
                     absl::Span<const PlannedPath> after, const DrawPlanOptions& options) {
  return Drawing(fabric).Draw(before, after, options);
}

}  // namespace weft::topology
