#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/topo/fabric_commands.h"
#include "topology/fabric/check.h"

namespace weft::topo {

using topology::Fabric;
using topology::FabricFinding;
using topology::FindingLevel;

CheckCommand::CheckCommand(CLI::App& app)
    : command_(app.add_subcommand(
          "check",
          "What is odd about a fabric: unreachable pairs, single points of failure, "
          "asymmetries, mismatched speeds")),
      source_(*command_) {
  command_->option_defaults()->always_capture_default();
  command_->add_option("--json", json_file_, "Findings for machines; - is standard output");
  command_->footer(absl::StrCat(FabricHelp(),
                                "\nExit status: 0 when there is nothing but notes; 1 for warnings, "
                                "errors, and what cannot be\n"
                                "read; 2 for wrong usage."));
}

absl::StatusOr<int> CheckCommand::Run() const {
  WEFT_RETURN_IF_ERROR(CheckOutput(json_file_));
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, source_.Load());
  std::vector<FabricFinding> findings = topology::CheckFabric(fabric);
  std::map<FindingLevel, int> counts;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const FabricFinding& finding : findings) {
    ++counts[finding.level];
    rows.push_back({{"level", std::string(NameOf(finding.level))},
                    {"kind", finding.kind},
                    {"text", finding.text}});
    if (json_file_ != "-") {
      absl::PrintF("%-8s %-12s %s\n", NameOf(finding.level), finding.kind, finding.text);
    }
  }
  int bad = counts[FindingLevel::kError] + counts[FindingLevel::kWarning];
  if (json_file_ != "-") {
    absl::PrintF("%s: %d hosts, %d switches, %d cables: %d errors, %d warnings, %d notes\n",
                 source_.name(), fabric.hosts().size(), fabric.switches().size(),
                 fabric.links() / 2, counts[FindingLevel::kError], counts[FindingLevel::kWarning],
                 counts[FindingLevel::kNote]);
  }
  if (!json_file_.empty()) {
    WEFT_RETURN_IF_ERROR(WriteJsonFile(json_file_, {{"ok", bad == 0}, {"findings", rows}}));
  }
  return bad == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace weft::topo
