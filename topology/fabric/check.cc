#include "topology/fabric/check.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "topology/fabric/cut_points.h"
#include "topology/fabric/name_list.h"

namespace weft::topology {
namespace {

constexpr size_t kMaxOfKind = 10;

class Checker {
 public:
  explicit Checker(const Fabric& fabric) : fabric_(fabric) {}

  std::vector<FabricFinding> Run() {
    FindParts();
    CheckReach();
    CheckCutPoints();
    CheckFaults();
    CheckSymmetry();
    CheckSpeeds();
    CheckPorts();
    std::stable_sort(
        findings_.begin(), findings_.end(),
        [](const FabricFinding& a, const FabricFinding& b) { return a.level > b.level; });
    return std::move(findings_);
  }

 private:
  void Add(FindingLevel level, absl::string_view kind, std::string text) {
    findings_.push_back({level, std::string(kind), std::move(text)});
  }
  // Several of one kind, cut to ten.
  void AddAll(FindingLevel level, absl::string_view kind, std::vector<std::string> texts) {
    size_t more = texts.size() > kMaxOfKind ? texts.size() - kMaxOfKind : 0;
    texts.resize(texts.size() - more);
    for (std::string& text : texts) Add(level, kind, std::move(text));
    if (more > 0) Add(level, kind, absl::StrCat("and ", more, " more like these"));
  }
  std::string Names(const std::vector<NodeId>& nodes) const {
    constexpr size_t kMost = 80;
    std::vector<std::string> names;
    names.reserve(nodes.size());
    for (NodeId node : nodes) names.push_back(fabric_.node(node).name);
    std::string text = CompressNames(names);
    return text.size() <= kMost ? text : absl::StrCat(text.substr(0, kMost), "...");
  }
  static std::string Hosts(size_t count) {
    return absl::StrCat(count, count == 1 ? " host" : " hosts");
  }

  // Connected parts of the switches over links that are up; hosts join nothing.
  void FindParts() {
    part_.assign(static_cast<size_t>(fabric_.nodes()), -1);
    for (NodeId start : fabric_.switches()) {
      if (part_[start.index()] >= 0) continue;
      std::vector<NodeId> queue = {start};
      part_[start.index()] = parts_;
      for (size_t head = 0; head < queue.size(); ++head) {
        for (LinkId id : fabric_.LinksFrom(queue[head])) {
          const FabricLink& link = fabric_.link(id);
          if (!link.up || link.nic >= 0 || part_[link.target.index()] >= 0) continue;
          part_[link.target.index()] = parts_;
          queue.push_back(link.target);
        }
      }
      ++parts_;
    }
  }

  void CheckReach() {
    std::map<std::set<int>, std::vector<NodeId>> by_parts;  // hosts by the parts they hang on
    for (NodeId host : fabric_.hosts()) {
      std::set<int> parts;
      for (LinkId id : fabric_.LinksFrom(host)) {
        if (fabric_.link(id).up) parts.insert(part_[fabric_.link(id).target.index()]);
      }
      by_parts[parts].push_back(host);
    }
    std::vector<std::string> texts;
    int budget = 1'000'000;  // pairs to compare: enough but for what was made to be slow
    for (auto a = by_parts.begin(); a != by_parts.end(); ++a) {
      if (a->first.empty()) {
        texts.push_back(absl::StrCat(Names(a->second), ": no cable that is up"));
        continue;
      }
      for (auto b = std::next(a); b != by_parts.end() && texts.size() <= kMaxOfKind; ++b) {
        if (--budget < 0) break;
        std::vector<int> common;
        std::set_intersection(a->first.begin(), a->first.end(), b->first.begin(), b->first.end(),
                              std::back_inserter(common));
        if (!common.empty()) continue;
        texts.push_back(absl::StrCat(Names(a->second), " (", Hosts(a->second.size()),
                                     ") cannot reach ", Names(b->second), " (",
                                     Hosts(b->second.size()), ")"));
      }
    }
    AddAll(FindingLevel::kError, "unreachable", std::move(texts));
    std::set<int> used;
    for (const auto& [parts, hosts] : by_parts) used.insert(parts.begin(), parts.end());
    if (used.size() > 1) {
      Add(FindingLevel::kNote, "planes",
          absl::StrCat("there are ", used.size(),
                       " separate networks of switches; only hosts join them"));
    }
    std::vector<NodeId> idle;
    for (NodeId node : fabric_.switches()) {
      if (!used.contains(part_[node.index()])) idle.push_back(node);
    }
    if (!idle.empty()) {
      Add(FindingLevel::kWarning, "unused", absl::StrCat(Names(idle), ": no host reaches them"));
    }
  }

  void CheckCutPoints() {
    std::vector<std::string> texts;
    for (const CutPoint& point : FindCutPoints(fabric_)) {
      bool is_switch = point.cable == LinkId();
      std::string name = is_switch ? fabric_.node(point.node).name
                                   : absl::StrCat("cable ", fabric_.Name(point.cable));
      absl::StrAppend(&name, " is a single point of failure: without it ");
      if (is_switch) {
        absl::StrAppend(&name, "the network of ", point.total, " host ports falls into ",
                        point.parts, " parts");
      } else {
        absl::StrAppend(&name, point.cut_off, " host ports are cut off from ",
                        point.total - point.cut_off);
      }
      texts.push_back(std::move(name));
    }
    AddAll(FindingLevel::kWarning, "single-point", std::move(texts));
  }

  void CheckFaults() {
    std::vector<std::string> down;
    std::vector<std::string> degraded;
    for (int i = 0; i < fabric_.links(); i += 2) {
      const FabricLink& link = fabric_.link(LinkId(i));
      if (!link.up) down.push_back(absl::StrCat(fabric_.Name(LinkId(i)), " is down"));
      if (link.up && link.bandwidth < link.nominal) {
        degraded.push_back(absl::StrCat(fabric_.Name(LinkId(i)), " has ", ToString(link.bandwidth),
                                        " of ", ToString(link.nominal)));
      }
    }
    AddAll(FindingLevel::kWarning, "down", std::move(down));
    AddAll(FindingLevel::kWarning, "degraded", std::move(degraded));
  }

  // Whoever differs from most of its like. `what` and `count` describe each of `nodes`.
  template <typename Describe>
  void ReportOdd(absl::string_view kind, const std::vector<NodeId>& nodes, Describe describe) {
    std::map<std::string, std::vector<NodeId>> by_text;
    for (NodeId node : nodes) by_text[describe(node)].push_back(node);
    if (by_text.size() < 2) return;
    auto most = std::max_element(by_text.begin(), by_text.end(), [](const auto& a, const auto& b) {
      return a.second.size() < b.second.size();
    });
    std::vector<std::string> texts;
    for (const auto& [text, who] : by_text) {
      if (text == most->first) continue;
      texts.push_back(absl::StrCat(Names(who), ": ", text, ", where ", most->second.size(),
                                   most->second.size() == 1 ? " other has " : " others have ",
                                   most->first));
    }
    AddAll(FindingLevel::kWarning, kind, std::move(texts));
  }

  // Cables that are up, by the tier at their far end: "16 cables to hosts, 8 to tier 2".
  std::string CablesOf(NodeId node) const {
    std::map<int, int> counts;
    for (LinkId id : fabric_.LinksFrom(node)) {
      if (fabric_.link(id).up) ++counts[fabric_.node(fabric_.link(id).target).tier];
    }
    std::vector<std::string> parts;
    parts.reserve(counts.size());
    for (const auto& [tier, count] : counts) {
      parts.push_back(
          absl::StrCat(count, tier == 0 ? " to hosts" : absl::StrCat(" to tier ", tier)));
    }
    return parts.empty() ? "no cables" : absl::StrCat("cables ", absl::StrJoin(parts, ", "));
  }

  void CheckSymmetry() {
    std::map<int, std::vector<NodeId>> tiers;
    for (NodeId node : fabric_.switches()) tiers[fabric_.node(node).tier].push_back(node);
    for (const auto& [tier, nodes] : tiers) {
      ReportOdd("asymmetry", nodes, [&](NodeId node) { return CablesOf(node); });
    }
    std::vector<NodeId> hosts(fabric_.hosts().begin(), fabric_.hosts().end());
    ReportOdd("asymmetry", hosts, [&](NodeId host) {
      size_t ports = fabric_.LinksFrom(host).size();
      return absl::StrCat(fabric_.nics(host), " NICs with ", ports, " ports");
    });
  }

  // Equal-cost links share load evenly: the slowest of them limits all.
  void CheckSpeeds() {
    std::vector<std::string> texts;
    for (NodeId node : fabric_.switches()) {
      std::map<double, int> up;
      for (LinkId id : fabric_.LinksFrom(node)) {
        const FabricLink& link = fabric_.link(id);
        bool is_up = fabric_.node(link.target).tier > fabric_.node(node).tier;
        if (link.up && is_up) ++up[link.nominal.bytes_per_second()];
      }
      if (up.size() < 2) continue;
      std::vector<std::string> parts;
      parts.reserve(up.size());
      for (const auto& [speed, count] : up) {
        parts.push_back(absl::StrCat(count, " x ", ToString(Bandwidth::BytesPerSecond(speed))));
      }
      texts.push_back(absl::StrCat(fabric_.node(node).name, " has cables up of different speeds: ",
                                   absl::StrJoin(parts, ", ")));
    }
    std::vector<NodeId> hosts(fabric_.hosts().begin(), fabric_.hosts().end());
    AddAll(FindingLevel::kWarning, "speed", std::move(texts));
    ReportOdd("speed", hosts, [&](NodeId host) {
      std::set<double> speeds;
      for (LinkId id : fabric_.LinksFrom(host)) {
        speeds.insert(fabric_.link(id).nominal.bytes_per_second());
      }
      std::vector<std::string> parts;
      parts.reserve(speeds.size());
      for (double speed : speeds) parts.push_back(ToString(Bandwidth::BytesPerSecond(speed)));
      return absl::StrCat("ports of ", absl::StrJoin(parts, " and "));
    });
  }

  void CheckPorts() {
    size_t single = 0;
    for (NodeId host : fabric_.hosts()) {
      std::set<NodeId> leaves;
      for (LinkId id : fabric_.LinksFrom(host)) {
        if (fabric_.link(id).up) leaves.insert(fabric_.link(id).target);
      }
      if (leaves.size() == 1) ++single;
    }
    if (single > 0 && fabric_.switches().size() > 1) {
      Add(FindingLevel::kNote, "single-homed",
          absl::StrCat(Hosts(single), " of ", fabric_.hosts().size(),
                       single == 1 ? " hangs" : " hang", " on one switch, and fail with it"));
    }
  }

  const Fabric& fabric_;
  std::vector<int> part_;
  int parts_ = 0;
  std::vector<FabricFinding> findings_;
};

}  // namespace

absl::string_view NameOf(FindingLevel level) {
  switch (level) {
    case FindingLevel::kNote:
      return "note";
    case FindingLevel::kWarning:
      return "warning";
    case FindingLevel::kError:
      return "error";
  }
  return "";
}

std::vector<FabricFinding> CheckFabric(const Fabric& fabric) { return Checker(fabric).Run(); }

}  // namespace weft::topology
