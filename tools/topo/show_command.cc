#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/topo/fabric_commands.h"
#include "topology/fabric/draw.h"
#include "topology/fabric/name_list.h"
#include "topology/fabric/routes.h"
#include "topology/fabric/summary.h"

namespace weft::topo {
namespace {

using topology::Fabric;
using topology::FabricNode;
using topology::NodeKind;

// Nodes with the same neighbours above.
struct Family {
  std::vector<std::string> names, above;
  int tier = 0;
};

std::vector<Family> Families(const Fabric& fabric) {
  std::vector<Family> families;
  std::map<std::pair<int, std::vector<NodeId>>, size_t> index;
  for (int i = 0; i < fabric.nodes(); ++i) {
    const FabricNode& node = fabric.node(NodeId(i));
    std::vector<NodeId> above;
    for (LinkId link : fabric.LinksFrom(NodeId(i))) {
      NodeId other = fabric.link(link).target;
      bool is_above = node.kind == NodeKind::kHost || fabric.node(other).tier > node.tier;
      if (is_above && (above.empty() || above.back() != other)) above.push_back(other);
    }
    if (above.empty()) continue;
    auto [found, is_new] = index.try_emplace({node.tier, above}, families.size());
    if (is_new) {
      families.push_back({{}, {}, node.tier});
      for (NodeId other : above) families.back().above.push_back(fabric.node(other).name);
    }
    families[found->second].names.push_back(node.name);
  }
  std::stable_sort(families.begin(), families.end(),
                   [](const Family& a, const Family& b) { return a.tier < b.tier; });
  return families;
}

std::string Cut(const std::string& text, size_t most) {
  return text.size() <= most ? text : text.substr(0, most - 2) + "..";
}

void PrintFamilies(const std::vector<Family>& families, int lines) {
  int tier = -1;
  int printed = 0;
  for (size_t i = 0; i < families.size(); ++i) {
    const Family& family = families[i];
    if (family.tier != tier) {
      tier = family.tier;
      absl::PrintF("%s\n", tier == 0 ? "hosts below their switches"
                                     : absl::StrCat("tier ", tier, " below those above"));
      printed = 0;
    }
    if (lines > 0 && printed == lines) {
      size_t more = 0;
      for (; i < families.size() && families[i].tier == tier; ++i) ++more;
      --i;
      absl::PrintF("  and %d more such groups (--lines 0 prints all)\n", more);
      continue;
    }
    ++printed;
    absl::PrintF("  %-32s -> %s\n", Cut(topology::CompressNames(family.names), 60),
                 Cut(topology::CompressNames(family.above), 70));
  }
}

nlohmann::ordered_json ToJson(const topology::FabricSummary& summary,
                              const std::vector<Family>& families) {
  nlohmann::ordered_json tiers = nlohmann::ordered_json::array();
  for (const topology::TierSummary& tier : summary.tiers) {
    tiers.push_back({{"tier", tier.tier},
                     {"switches", tier.switches},
                     {"cables_down", tier.cables_down},
                     {"cables_up", tier.cables_up},
                     {"down_gbps", tier.down.gigabits_per_second()},
                     {"up_gbps", tier.up.gigabits_per_second()},
                     {"oversubscription", tier.oversubscription}});
  }
  nlohmann::ordered_json cables = nlohmann::ordered_json::array();
  for (const topology::CableSummary& cable : summary.cables) {
    cables.push_back({{"lower_tier", cable.lower},
                      {"upper_tier", cable.upper},
                      {"gbps", cable.nominal.gigabits_per_second()},
                      {"count", cable.count},
                      {"down", cable.down},
                      {"degraded", cable.degraded}});
  }
  nlohmann::ordered_json groups = nlohmann::ordered_json::array();
  for (const Family& family : families) {
    groups.push_back({{"tier", family.tier},
                      {"nodes", topology::CompressNames(family.names)},
                      {"above", topology::CompressNames(family.above)}});
  }
  return {{"hosts", summary.hosts},
          {"nics", summary.nics},
          {"ports", summary.ports},
          {"pods", summary.pods},
          {"planes", summary.planes},
          {"tiers", tiers},
          {"cables", cables},
          {"injection_gbps", summary.injection.gigabits_per_second()},
          {"bisection_gbps", summary.bisection.gigabits_per_second()},
          {"groups", groups}};
}

absl::Status PrintRoutes(const Fabric& fabric, FILE* out) {
  WEFT_RETURN_IF_ERROR(topology::Routes::Feasible(fabric));
  SystemClock clock;
  absl::Time begin = clock.Now();
  topology::Routes routes(fabric);
  absl::Duration built = clock.Now() - begin;
  absl::FPrintF(out, "routes  to %d NICs: %.0f ms, %s\n", fabric.endpoints(),
                absl::ToDoubleMilliseconds(built), ToString(routes.memory()));
  return absl::OkStatus();
}

}  // namespace

ShowCommand::ShowCommand(CLI::App& app)
    : command_(app.add_subcommand("show", "A fabric: counts, tree, bisection, pictures")),
      source_(*command_) {
  command_->option_defaults()->always_capture_default();
  command_->add_option("--svg", svg_file_, "Draw it here; - is standard output");
  command_->add_option("--dot", dot_file_, "Every node and cable for Graphviz");
  command_->add_option("--json", json_file_, "The same numbers for machines; - is standard output");
  command_->add_option("--lines", lines_, "Groups of a tier to print; 0: all")
      ->check(CLI::NonNegativeNumber);
  command_->add_flag("--routes", routes_, "Compute equal-cost routes; print time and memory");
  command_->footer(
      absl::StrCat(FabricHelp(),
                   "\nBisection: what the first half of the hosts can send to the second half at "
                   "most, one way.\n"
                   "Exit status: 0; 1 for what cannot be read or written; 2 for wrong usage."));
}

absl::StatusOr<int> ShowCommand::Run() const {
  for (const std::string& file : {json_file_, svg_file_, dot_file_}) {
    WEFT_RETURN_IF_ERROR(CheckOutput(file));
  }
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, source_.Load());
  topology::FabricSummary summary = topology::Summarise(fabric);
  std::vector<Family> families = Families(fabric);
  bool quiet = json_file_ == "-" || svg_file_ == "-" || dot_file_ == "-";
  if (!quiet) {
    absl::PrintF("%s", topology::ToText(summary));
    PrintFamilies(families, lines_);
  }
  if (routes_) WEFT_RETURN_IF_ERROR(PrintRoutes(fabric, quiet ? stderr : stdout));
  if (!json_file_.empty()) {
    WEFT_RETURN_IF_ERROR(WriteJsonFile(json_file_, ToJson(summary, families)));
  }
  if (!svg_file_.empty()) {
    topology::DrawOptions options;
    WEFT_RETURN_IF_ERROR(WriteOutput(svg_file_, topology::DrawSvg(fabric, options)));
  }
  if (!dot_file_.empty()) WEFT_RETURN_IF_ERROR(WriteOutput(dot_file_, topology::ToDot(fabric)));
  return EXIT_SUCCESS;
}

}  // namespace weft::topo
