// weft-cc: congestion controllers and path policies, compared in the simulator.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/units.h"
#include "base/write_file.h"
#include "net/cc/registry.h"
#include "tools/cc/compare.h"
#include "tools/cc/figures.h"
#include "tools/cc/tune.h"
#include "tools/command_line.h"
#include "topology/fabric/load.h"
#include "topology/plan/connection_plan.h"
#include "topology/sim/workloads/htsim_traffic.h"

namespace weft::cc {
namespace {

constexpr const char* kFooter = R"(Examples:
  weft-cc list
  weft-cc compare --scenario incast,all-to-all --cc swift hybrid dcqcn:window=1 --policy single,reps
  weft-cc figures --docs docs/congestion-control.md
  weft-cc tune --scenario incast --cc swift --parameter hop beta --out swift.txt --svg swift.svg
  weft-cc tune --plan plan --cc swift            for a job's own fabric and traffic, into the plan

Exit status: 0 when all was done, 1 when something failed, 2 for wrong usage.)";

// Replaces what stands between "<!-- begin NAME -->" and "<!-- end NAME -->".
absl::Status Insert(const std::string& path, const std::string& name, const std::string& text) {
  WEFT_ASSIGN_OR_RETURN(std::string page, ReadFile(path));
  std::string begin = absl::StrCat("<!-- begin ", name, " -->\n");
  std::string end = absl::StrCat("<!-- end ", name, " -->");
  size_t from = page.find(begin), until = page.find(end);
  if (from == std::string::npos || until == std::string::npos || until < from) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, " lacks the lines '<!-- begin ", name, " -->' and '", end, "'"));
  }
  from += begin.size();
  return WriteFile(path, page.replace(from, until - from, text));
}

struct FigureOptions {
  std::string docs;
  std::vector<std::string> names;
};

// Into the page, and its pictures into a folder of the page's name beside it.
absl::Status PutFigure(const std::string& docs, const FigureKind& kind, const Figure& figure) {
  std::string text = figure.table;
  std::string folder = docs.substr(0, docs.rfind('.'));
  std::string base = folder.substr(folder.rfind('/') + 1);
  for (const auto& [name, plot] : figure.pictures) {
    WEFT_RETURN_IF_ERROR(WriteFile(absl::StrCat(folder, "/", name, ".svg"), RenderSvg(plot)));
    absl::StrAppend(&text, "\n![", plot.title, "](", base, "/", name, ".svg)\n");
  }
  return Insert(docs, kind.name, text);
}

absl::Status MakeFigures(const FigureOptions& options) {
  for (const std::string& name : options.names) {
    bool is_known = false;
    for (const FigureKind& kind : AllFigures()) is_known = is_known || kind.name == name;
    if (!is_known) {
      return absl::InvalidArgumentError(absl::StrCat("no figure '", name, "'; see weft-cc list"));
    }
  }
  for (const FigureKind& kind : AllFigures()) {
    bool is_wanted = options.names.empty() || std::find(options.names.begin(), options.names.end(),
                                                        kind.name) != options.names.end();
    if (!is_wanted) continue;
    int64_t begin = SystemClock::Nanoseconds();
    WEFT_ASSIGN_OR_RETURN(Figure figure, kind.make());
    double seconds = static_cast<double>(SystemClock::Nanoseconds() - begin) * 1e-9;
    absl::PrintF("%s: %s (%.1f s)\n\n%s\n", kind.name, kind.meaning, seconds, figure.table);
    std::fflush(stdout);
    if (!options.docs.empty()) WEFT_RETURN_IF_ERROR(PutFigure(options.docs, kind, figure));
  }
  return absl::OkStatus();
}

// On a terminal: how many runs are done, and the time that is left if things go on so.
class ProgressLine {
 public:
  void Update(size_t done, size_t all) const {
    if (!shows_) return;
    double elapsed = static_cast<double>(SystemClock::Nanoseconds() - begin_) * 1e-9;
    double left = elapsed / static_cast<double>(done) * static_cast<double>(all - done);
    absl::FPrintF(stderr, "\r%d of %d runs, %.0f s left   %s", done, all, left,
                  done == all ? "\n" : "");
  }

 private:
  const bool shows_ = isatty(STDERR_FILENO) != 0;
  const int64_t begin_ = SystemClock::Nanoseconds();
};

struct TuneFiles {
  std::string plan;                   // directory, whose fabric and traffic are taken
  std::string largest_flow = "4MiB";  // of that traffic
  std::string fabric, workload;       // in place of the scenario's
  std::string out, json, svg;
};

absl::Status RunCompare(const CompareOptions& options, const std::string& json) {
  WEFT_RETURN_IF_ERROR(CheckOutput(json));
  ProgressLine line;
  auto progress = [&](size_t done, size_t all) { line.Update(done, all); };
  WEFT_ASSIGN_OR_RETURN(std::vector<CompareRow> rows, Compare(options, progress));
  if (json != "-") std::fputs(ToText(rows).c_str(), stdout);
  return json.empty() ? absl::OkStatus() : WriteOutput(json, JsonText(ToJson(rows), 2) + "\n");
}

// The traffic of a plan directory; sizes are scaled so that the largest flow has `largest`, as a
// simulation of packets takes seconds for some gigabytes. By how much goes to `notes`.
absl::StatusOr<topology::Workload> PlannedTraffic(const std::string& folder, Bytes largest,
                                                  FILE* notes) {
  WEFT_ASSIGN_OR_RETURN(topology::Fabric fabric,
                        topology::LoadFabric(absl::StrCat(folder, "/fabric.toml")));
  WEFT_ASSIGN_OR_RETURN(
      topology::Workload whole,
      topology::ReadHtsimTraffic(absl::StrCat(folder, "/", topology::kPlanTrafficFile), fabric));
  int64_t most = 1;
  for (topology::OperationId id = 0; id < whole.size(); ++id) {
    most = std::max(most, whole.operation(id).bytes.count());
  }
  const double factor = std::min(1.0, static_cast<double>(largest.count()) / most);
  topology::Workload out;
  for (uint32_t group = 1; group < whole.groups(); ++group) out.AddGroup(whole.group(group));
  for (topology::OperationId id = 0; id < whole.size(); ++id) {
    topology::Operation one = whole.operation(id);
    one.bytes = Bytes(std::max<int64_t>(1, std::llround(one.bytes.count() * factor)));
    out.Add(one, whole.After(id));
  }
  absl::FPrintF(notes, "traffic of %s: %d flows, their bytes times %.4g\n", folder, out.size(),
                factor);
  return out;
}

absl::Status UsePlan(TuneFiles& files, TuneOptions& options, FILE* notes) {
  WEFT_ASSIGN_OR_RETURN(const Bytes largest, ParseBytes(files.largest_flow));
  if (!files.workload.empty()) {
    return absl::InvalidArgumentError("--plan and --workload exclude each other");
  }
  if (files.fabric.empty()) files.fabric = absl::StrCat(files.plan, "/fabric.toml");
  WEFT_ASSIGN_OR_RETURN(options.scenario.built, PlannedTraffic(files.plan, largest, notes));
  if (files.out.empty()) {
    files.out = absl::StrCat(files.plan, "/", topology::kPlanControllerFile);
  }
  return absl::OkStatus();
}

absl::Status RunTune(TuneOptions options, const std::string& scenario, TuneFiles files) {
  const auto& all = AllScenarios();
  auto found = std::find_if(all.begin(), all.end(),
                            [&](const Scenario& one) { return one.name == scenario; });
  if (found == all.end()) {
    return absl::InvalidArgumentError(
        absl::StrCat("no scenario '", scenario, "'; see weft-cc list"));
  }
  options.scenario = *found;
  FILE* const notes = files.json == "-" ? stderr : stdout;
  if (!files.plan.empty()) WEFT_RETURN_IF_ERROR(UsePlan(files, options, notes));
  if (!files.fabric.empty()) options.scenario.fabric = files.fabric;
  if (!files.workload.empty()) options.scenario.workload = files.workload;
  for (const std::string& file : {files.json, files.svg, files.out}) {
    WEFT_RETURN_IF_ERROR(CheckOutput(file));
  }
  ProgressLine line;
  auto progress = [&](size_t done, size_t of) { line.Update(done, of); };
  WEFT_ASSIGN_OR_RETURN(std::vector<TuneRow> rows, Tune(options, progress));
  if (files.json != "-") std::fputs(ToText(rows).c_str(), stdout);
  if (!files.json.empty()) {
    WEFT_RETURN_IF_ERROR(WriteOutput(files.json, JsonText(ToJson(rows), 2) + "\n"));
  }
  if (!files.svg.empty()) {
    std::string title = absl::StrCat(options.controller, " on ", scenario);
    WEFT_RETURN_IF_ERROR(WriteFile(files.svg, RenderSvg(ToPlot(rows, title))));
  }
  if (files.out.empty()) return absl::OkStatus();
  WEFT_RETURN_IF_ERROR(WriteFile(files.out, net::ToString(Best(rows).spec) + "\n"));
  absl::FPrintF(notes, "written: %s\n", files.out);
  return absl::OkStatus();
}

void List() {
  absl::PrintF("Controllers and their parameters, with defaults:\n%s\nPath policies:\n",
               net::ControllerHelp());
  for (net::PolicyKind kind : net::AllPolicies()) absl::PrintF("  %s\n", net::ToString(kind));
  absl::PrintF("\nScenarios of compare:\n");
  for (const Scenario& one : AllScenarios()) absl::PrintF("  %-14s %s\n", one.name, one.meaning);
  absl::PrintF("\nFigures:\n");
  for (const FigureKind& one : AllFigures()) absl::PrintF("  %-14s %s\n", one.name, one.meaning);
}

// What the command line says.
struct Words {
  FigureOptions figures;
  CompareOptions compare;
  std::string compare_json;
  TuneOptions tune;
  TuneFiles files;
  std::string scenario = "incast";
};

CLI::App* DeclareFigures(CLI::App& app, Words& words) {
  CLI::App* figures = app.add_subcommand("figures", "Controllers against their papers");
  figures->add_option("--docs", words.figures.docs,
                      "A page whose marked places the tables are put into, with the pictures in a "
                      "folder of its name beside it; empty: print the tables only");
  figures->add_option("--only", words.figures.names, "These; all if none is named")->delimiter(',');
  return figures;
}

CLI::App* DeclareCompare(CLI::App& app, Words& words) {
  CLI::App* compare = app.add_subcommand("compare", "Controllers x policies on scenarios");
  CompareOptions& options = words.compare;
  options.controllers = {"fixed", "dcqcn", "swift", "mswift", "hybrid", "nscc", "credit"};
  options.policies = {"single", "random", "reps"};
  compare->add_option("--scenario", options.scenarios, "Of list; all if none is named")
      ->delimiter(',');
  compare->add_option("--cc", options.controllers, "NAME[:key=value,...], several with spaces");
  compare->add_option("--policy", options.policies, "Path policies")->delimiter(',');
  compare->add_option("--paths", options.paths, "That each connection may use")
      ->check(CLI::Range(1, 4096));
  compare->add_option("--seed", options.seed, "Seed of all random draws");
  compare->add_option("--json", words.compare_json,
                      "Write the rows into this file; -: print them, and no table");
  return compare;
}

CLI::App* DeclareTune(CLI::App& app, Words& words) {
  CLI::App* tune = app.add_subcommand("tune", "Search a controller's parameters");
  TuneOptions& options = words.tune;
  tune->add_option("--scenario", words.scenario, "Of list");
  tune->add_option("--plan", words.files.plan,
                   "A plan directory (weft-plan paths --out): tune for its fabric and traffic, and "
                   "write the best into its controller.txt, which multipath reads where WEFT_PLAN "
                   "names the directory");
  tune->add_option("--largest-flow", words.files.largest_flow,
                   "With --plan: bytes that the largest flow of its traffic is scaled down to");
  tune->add_option("--fabric", words.files.fabric,
                   "Fabric in place of the scenario's, as for weft-sim");
  tune->add_option("--workload", words.files.workload,
                   "Workload in place of the scenario's, as for weft-sim");
  tune->add_option("--cc", options.controller,
                   "Controller and parameters at which the search begins");
  tune->add_option("--parameter", options.parameters,
                   "To be searched, several with spaces; all with a default if none is named");
  tune->add_option("--policy", options.policy, "Path policy");
  tune->add_option("--paths", options.paths, "That each connection may use")
      ->check(CLI::Range(1, 4096));
  tune->add_option("--runs", options.runs, "Simulations")->check(CLI::Range(2, 100000));
  tune->add_option("--queue-weight", options.queue_weight,
                   "Weight of the queue in the score, relative to completion times")
      ->check(RealRange(0, 1));
  tune->add_option("--seed", options.seed, "Seed of the search");
  tune->add_option("--out", words.files.out, "Write the best, as --cc takes it, into this file");
  tune->add_option("--json", words.files.json,
                   "Write every run into this file; -: print them, and no table");
  tune->add_option("--svg", words.files.svg, "Draw the trade-off into this file");
  return tune;
}

int Main(int argc, char** argv) {
  CLI::App app("weft-cc: congestion controllers and path policies, compared in the simulator",
               "weft-cc");
  app.footer(kFooter);
  app.require_subcommand(1);
  app.option_defaults()->always_capture_default();
  Words words;
  CLI::App* list = app.add_subcommand("list", "Controllers, policies, scenarios and figures");
  CLI::App* figures = DeclareFigures(app, words);
  CLI::App* compare = DeclareCompare(app, words);
  CLI::App* tune = DeclareTune(app, words);
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  absl::Status status;
  if (list->parsed()) List();
  if (figures->parsed()) status = MakeFigures(words.figures);
  if (compare->parsed()) status = RunCompare(words.compare, words.compare_json);
  if (tune->parsed()) status = RunTune(words.tune, words.scenario, words.files);
  if (status.ok()) return EXIT_SUCCESS;
  absl::FPrintF(stderr, "weft-cc: %s\n", status.message());
  return absl::IsInvalidArgument(status) ? kWrongUsage : EXIT_FAILURE;
}

}  // namespace
}  // namespace weft::cc

int main(int argc, char** argv) { return weft::cc::Main(argc, argv); }
