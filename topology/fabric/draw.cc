#include "topology/fabric/draw.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/xml_text.h"
#include "topology/fabric/name_list.h"

namespace weft::topology {
namespace {

constexpr int kMargin = 20;
constexpr int kLegendHeight = 56;
constexpr int kRowHeight = 150;
constexpr int kBoxHeight = 34;

// From cold to hot; light to dark as well, for those who do not tell the colours apart.
std::string Colour(double fraction) {
  constexpr std::array<std::array<double, 3>, 5> kScale = {
      {{198, 219, 239}, {107, 174, 214}, {253, 212, 92}, {240, 110, 40}, {165, 0, 38}}};
  if (fraction > 1.0000001) return "#000000";
  double at = std::clamp(fraction, 0.0, 1.0) * (kScale.size() - 1);
  size_t below = std::min(static_cast<size_t>(at), kScale.size() - 2);
  double part = at - static_cast<double>(below);
  std::array<int, 3> rgb{};
  for (size_t i = 0; i < 3; ++i) {
    double value = kScale[below][i] * (1 - part) + kScale[below + 1][i] * part;
    rgb[i] = static_cast<int>(std::lround(value));
  }
  return absl::StrFormat("#%02x%02x%02x", rgb[0], rgb[1], rgb[2]);
}

struct Box {
  std::vector<NodeId> nodes;
  double x = 0, y = 0, width = 0;  // x: of its middle
};

// All links in one direction between two boxes.
struct Bundle {
  double bandwidth = 0;  // of those that are up, bytes per second
  int links = 0, down = 0, degraded = 0;
  double value_max = -std::numeric_limits<double>::infinity(), value_sum = 0;
  int values = 0;
  LinkId hottest;
};

class Drawing {
 public:
  Drawing(const Fabric& fabric, const DrawOptions& options)
      : fabric_(fabric), options_(options), box_of_(static_cast<size_t>(fabric.nodes()), -1) {
    options_.width = std::max(options_.width, 300);
    options_.row_limit = std::clamp(options_.row_limit, 1, 500);
  }

  std::string Draw() {
    MakeRows();
    Place();
    CollectBundles();
    std::string lines;
    for (const auto& [ends, bundle] : bundles_) DrawBundle(ends.first, ends.second, bundle, lines);
    std::string boxes;
    for (const Box& box : boxes_) DrawBox(box, boxes);
    int height =
        2 * kMargin + kLegendHeight + static_cast<int>(rows_.size() - 1) * kRowHeight + kBoxHeight;
    return absl::StrCat(
        absl::StrFormat("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" "
                        "width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"11\">\n"
                        "<rect width=\"100%%\" height=\"100%%\" fill=\"#ffffff\"/>\n",
                        options_.width, height, options_.width, height),
        Legend(), "<g stroke-linecap=\"round\">\n", lines, "</g>\n", boxes, "</svg>\n");
  }

 private:
  // Rows from the highest tier to hosts; each a list of boxes.
  void MakeRows() {
    std::map<int, std::vector<NodeId>, std::greater<>> tiers;
    for (NodeId node : fabric_.switches()) {
      tiers[std::max(1, fabric_.node(node).tier)].push_back(node);
    }
    for (const auto& [tier, nodes] : tiers) {
      AddRow(Limited(Fits(nodes) ? OneEach(nodes) : ByPodAndPlane(nodes)));
    }
    std::vector<NodeId> hosts(fabric_.hosts().begin(), fabric_.hosts().end());
    AddRow(Limited(Fits(hosts) ? OneEach(hosts) : ByLeaves(hosts)));
  }
  bool Fits(const std::vector<NodeId>& nodes) const {
    return nodes.size() <= static_cast<size_t>(options_.row_limit);
  }

  using Groups = std::vector<std::vector<NodeId>>;

  static Groups OneEach(const std::vector<NodeId>& nodes) {
    Groups groups;
    for (NodeId node : nodes) groups.push_back({node});
    return groups;
  }

  template <typename Key>
  static Groups Grouped(const std::vector<NodeId>& nodes, Key key) {
    Groups groups;
    std::map<decltype(key(NodeId())), size_t> index;
    for (NodeId node : nodes) {
      auto [found, is_new] = index.try_emplace(key(node), groups.size());
      if (is_new) groups.emplace_back();
      groups[found->second].push_back(node);
    }
    return groups;
  }

  Groups ByPodAndPlane(const std::vector<NodeId>& nodes) const {
    Groups groups = Grouped(nodes, [&](NodeId node) {
      return std::pair(fabric_.node(node).pod, fabric_.node(node).plane);
    });
    // A fabric without pods and planes would be one box: then neighbours are drawn together.
    return groups.size() > 1 ? groups : OneEach(nodes);
  }

  Groups ByLeaves(const std::vector<NodeId>& hosts) const {
    return Grouped(hosts, [&](NodeId host) {
      std::vector<NodeId> leaves;
      for (LinkId link : fabric_.LinksFrom(host)) leaves.push_back(fabric_.link(link).target);
      std::sort(leaves.begin(), leaves.end());
      return leaves;
    });
  }

  // Joins neighbours until a row has no more boxes than it may.
  Groups Limited(Groups groups) const {
    auto limit = static_cast<size_t>(options_.row_limit);
    if (groups.size() <= limit) return groups;
    limit = std::clamp<size_t>(static_cast<size_t>(options_.width) / 70, 1, limit);
    size_t each = (groups.size() + limit - 1) / limit;
    Groups joined;
    for (size_t i = 0; i < groups.size(); ++i) {
      if (i % each == 0) joined.emplace_back();
      joined.back().insert(joined.back().end(), groups[i].begin(), groups[i].end());
    }
    return joined;
  }

  void AddRow(const Groups& groups) {
    rows_.emplace_back();
    for (const std::vector<NodeId>& nodes : groups) {
      rows_.back().push_back(static_cast<int>(boxes_.size()));
      for (NodeId node : nodes) box_of_[node.index()] = static_cast<int>(boxes_.size());
      boxes_.push_back({nodes});
    }
  }

  void Place() {
    for (size_t row = 0; row < rows_.size(); ++row) {
      double pitch = static_cast<double>(options_.width - 2 * kMargin) /
                     static_cast<double>(std::max<size_t>(1, rows_[row].size()));
      for (size_t i = 0; i < rows_[row].size(); ++i) {
        Box& box = boxes_[static_cast<size_t>(rows_[row][i])];
        box.x = kMargin + pitch * (static_cast<double>(i) + 0.5);
        box.y = kMargin + kLegendHeight + static_cast<double>(row) * kRowHeight;
        box.width = std::min(pitch * 0.84, 130.0);
      }
    }
  }

  void CollectBundles() {
    for (int i = 0; i < fabric_.links(); ++i) {
      const FabricLink& link = fabric_.link(LinkId(i));
      int from = box_of_[link.source.index()];
      int to = box_of_[link.target.index()];
      Bundle& bundle = bundles_[{from, to}];
      ++bundle.links;
      if (!link.up) {
        ++bundle.down;
      } else {
        bundle.bandwidth += link.bandwidth.bytes_per_second();
        if (link.bandwidth < link.nominal) ++bundle.degraded;
      }
      if (static_cast<size_t>(i) >= options_.values.size()) continue;
      double value = options_.values[static_cast<size_t>(i)];
      if (std::isnan(value)) continue;
      bundle.value_sum += value;
      ++bundle.values;
      if (value > bundle.value_max) {
        bundle.value_max = value;
        bundle.hottest = LinkId(i);
      }
    }
    for (const auto& [ends, bundle] : bundles_) widest_ = std::max(widest_, bundle.bandwidth);
  }

  bool has_heat() const { return !options_.values.empty(); }

  void DrawBundle(int from, int to, const Bundle& bundle, std::string& out) const {
    if (from == to) return;
    // Without values both directions are alike: one line, drawn once.
    if (!has_heat() && from > to) return;
    const Box& a = boxes_[static_cast<size_t>(from)];
    const Box& b = boxes_[static_cast<size_t>(to)];
    double width = 0.6 + (widest_ > 0 ? 2.6 * std::sqrt(bundle.bandwidth / widest_) : 0);
    double shift = has_heat() ? (a.y > b.y ? -1.5 : 1.5) : 0;  // up on the left, down on the right
    bool a_is_upper = a.y < b.y;
    double y1 = a.y + (a_is_upper ? kBoxHeight : 0);
    double y2 = b.y + (a_is_upper ? 0 : kBoxHeight);
    std::string style;
    if (bundle.down == bundle.links) {
      style = "stroke=\"#e07b00\" stroke-dasharray=\"4 4\"";
      width = 1.5;
    } else if (has_heat()) {
      double value = bundle.values > 0 ? bundle.value_max / options_.value_max : 0;
      style = absl::StrCat("stroke=\"", bundle.values > 0 ? Colour(value) : "#dddddd", "\"");
    } else {
      bool is_whole = bundle.down == 0 && bundle.degraded == 0;
      style = is_whole ? "stroke=\"#7f9bb3\"" : "stroke=\"#e07b00\"";
    }
    absl::StrAppendFormat(&out,
                          "<line x1=\"%.1f\" y1=\"%.0f\" x2=\"%.1f\" y2=\"%.0f\" %s "
                          "stroke-width=\"%.1f\"><title>%s</title></line>\n",
                          a.x + shift, y1, b.x + shift, y2, style, width,
                          XmlText(Tooltip(a, b, bundle)));
  }

  std::string Tooltip(const Box& a, const Box& b, const Bundle& bundle) const {
    std::string text = absl::StrCat(Label(a, 60), has_heat() ? " > " : " - ", Label(b, 60), ": ",
                                    bundle.links, bundle.links == 1 ? " cable, " : " cables, ",
                                    ToString(Bandwidth::BytesPerSecond(bundle.bandwidth)));
    if (bundle.down > 0) absl::StrAppend(&text, ", ", bundle.down, " down");
    if (bundle.degraded > 0) absl::StrAppend(&text, ", ", bundle.degraded, " degraded");
    if (bundle.values > 0) {
      absl::StrAppendFormat(&text, ", %s %.3g", options_.value_name, bundle.value_max);
      if (bundle.values > 1) {
        absl::StrAppendFormat(&text, " at most (%s), %.3g on average", fabric_.Name(bundle.hottest),
                              bundle.value_sum / bundle.values);
      }
    }
    return text;
  }

  std::string Label(const Box& box, size_t most) const {
    std::vector<std::string> names;
    for (NodeId node : box.nodes) names.push_back(fabric_.node(node).name);
    std::string text = CompressNames(names);
    if (text.size() <= most) return text;
    text.erase(
        std::remove_if(text.begin(), text.end(), [](char c) { return c == '[' || c == ']'; }),
        text.end());
    if (text.size() <= most) return text;
    return most < 4 ? "" : absl::StrCat(text.substr(0, most - 2), "..");
  }

  void DrawBox(const Box& box, std::string& out) const {
    bool is_host = fabric_.node(box.nodes[0]).kind == NodeKind::kHost;
    auto room = static_cast<size_t>(std::max(0.0, box.width / 6.2));
    std::string label = Label(box, room);
    std::string count = box.nodes.size() == 1 ? "" : absl::StrCat("x ", box.nodes.size());
    absl::StrAppendFormat(
        &out,
        "<g><title>%s</title><rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%d\" rx=\"4\" "
        "fill=\"%s\" stroke=\"#405060\"/>",
        XmlText(absl::StrCat(Label(box, 200), count.empty() ? "" : " ", count)),
        box.x - box.width / 2, box.y, box.width, kBoxHeight, is_host ? "#eef3e6" : "#e3ebf4");
    auto text = [&](double y, const std::string& line) {
      if (line.empty()) return;
      absl::StrAppendFormat(&out, "<text x=\"%.1f\" y=\"%.0f\" text-anchor=\"middle\">%s</text>",
                            box.x, y, XmlText(line));
    };
    text(box.y + (count.empty() ? 21 : 15), label);
    if (room * 6.2 >= static_cast<double>(count.size()) * 6) text(box.y + 28, count);
    absl::StrAppend(&out, "</g>\n");
  }

  std::string Legend() const {
    std::string title = options_.title;
    if (title.empty()) {
      title = absl::StrFormat("%d hosts, %d switches, %d cables", fabric_.hosts().size(),
                              fabric_.switches().size(), fabric_.links() / 2);
    }
    std::string out = absl::StrFormat("<text x=\"%d\" y=\"%d\" font-size=\"15\">%s</text>\n",
                                      kMargin, kMargin + 12, XmlText(title));
    if (!has_heat()) {
      absl::StrAppendFormat(&out,
                            "<text x=\"%d\" y=\"%d\" fill=\"#666666\">width: bandwidth; orange: "
                            "cables down or degraded; dashed: all down</text>\n",
                            kMargin, kMargin + 32);
      return out;
    }
    constexpr int kSteps = 20;
    for (int i = 0; i < kSteps; ++i) {
      absl::StrAppendFormat(&out, "<rect x=\"%d\" y=\"%d\" width=\"8\" height=\"10\" fill=\"%s\"/>",
                            kMargin + 8 * i, kMargin + 22, Colour((i + 0.5) / kSteps));
    }
    absl::StrAppendFormat(&out,
                          "<text x=\"%d\" y=\"%d\" fill=\"#666666\">%s 0 to %.3g, black above; of "
                          "several links the largest; left: up, right: down</text>\n",
                          kMargin + 8 * kSteps + 8, kMargin + 31, XmlText(options_.value_name),
                          options_.value_max);
    return out;
  }

  const Fabric& fabric_;
  DrawOptions options_;
  std::vector<Box> boxes_;
  std::vector<std::vector<int>> rows_;
  std::vector<int> box_of_;  // [node]
  std::map<std::pair<int, int>, Bundle> bundles_;
  double widest_ = 0;
};

}  // namespace

std::string DrawSvg(const Fabric& fabric, const DrawOptions& options) {
  return Drawing(fabric, options).Draw();
}

std::string ToDot(const Fabric& fabric) {
  std::string out =
      "graph fabric {\n  graph [ranksep=1.5, rankdir=BT];\n  node [shape=box, fontsize=10];\n";
  std::map<int, std::vector<NodeId>> tiers;
  for (int i = 0; i < fabric.nodes(); ++i) {
    tiers[fabric.node(NodeId(i)).tier].push_back(NodeId(i));
  }
  for (const auto& [tier, nodes] : tiers) {
    absl::StrAppend(&out, "  { rank=same;");
    for (NodeId node : nodes) absl::StrAppend(&out, " \"", fabric.node(node).name, "\";");
    absl::StrAppend(&out, " }\n");
  }
  for (int i = 0; i < fabric.links(); i += 2) {
    const FabricLink& link = fabric.link(LinkId(i));
    bool is_turned = fabric.node(link.source).tier > fabric.node(link.target).tier;
    NodeId lower = is_turned ? link.target : link.source;
    NodeId upper = is_turned ? link.source : link.target;
    absl::StrAppend(&out, "  \"", fabric.node(lower).name, "\" -- \"", fabric.node(upper).name,
                    "\" [tooltip=\"", ToString(link.bandwidth), "\"",
                    link.up ? "" : ", style=dashed",
                    link.up && link.bandwidth < link.nominal ? ", color=orange" : "", "];\n");
  }
  absl::StrAppend(&out, "}\n");
  return out;
}

}  // namespace weft::topology
