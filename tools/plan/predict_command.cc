#include "tools/plan/predict_command.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/plan/report.h"
#include "topology/fabric/draw.h"

namespace weft::plan {
namespace {

using nlohmann::ordered_json;

double Largest(const std::vector<double>& seconds) {
  return seconds.empty() ? 0 : *std::max_element(seconds.begin(), seconds.end());
}

std::string LinkTable(const Input& input, absl::Span<const HotLink> links,
                      absl::Span<const double> other, const std::string& other_name) {
  std::string text =
      absl::StrFormat("%-34s %12s %12s", "fullest links (mean over hashes)", "bytes", "time");
  if (!other.empty()) absl::StrAppendFormat(&text, " %14s", "in " + other_name);
  absl::StrAppend(&text, "\n");
  for (const HotLink& link : links) {
    absl::StrAppendFormat(&text, "%-34s %12s %12s", input.fabric->Name(link.link),
                          ToString(Bytes(static_cast<int64_t>(link.bytes))),
                          TimeText(absl::Seconds(link.seconds)));
    if (!other.empty()) {
      absl::StrAppendFormat(&text, " %14s", TimeText(absl::Seconds(other[link.link.index()])));
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

ordered_json LinksJson(const Input& input, absl::Span<const HotLink> links) {
  ordered_json rows = ordered_json::array();
  for (const HotLink& link : links) {
    rows.push_back({{"link", input.fabric->Name(link.link)},
                    {"bytes", link.bytes},
                    {"time_ms", link.seconds * 1e3}});
  }
  return rows;
}

absl::Status Draw(const Input& input, const std::string& path, const std::string& title,
                  const std::vector<double>& seconds, double hottest) {
  topology::DrawOptions options;
  options.title = title;
  options.values = seconds;
  options.value_max = std::max(hottest, 1e-12);
  options.value_name = "seconds of transmission a step";
  return WriteOutput(path, topology::DrawSvg(*input.fabric, options));
}

constexpr std::array<const char*, 2> kMarks = {"a", "b"};  // of the two orders compared

// "loads.svg" -> "loads.a.svg".
std::string WithMark(const std::string& path, const std::string& mark) {
  size_t dot = path.rfind('.');
  size_t slash = path.rfind('/');
  if (dot == std::string::npos || (slash != std::string::npos && dot < slash)) dot = path.size();
  return absl::StrCat(path.substr(0, dot), ".", mark, path.substr(dot));
}

void DeclareCommon(CLI::App& command, int& count, std::string& svg, const char* svg_help) {
  command.add_option("--count", count, "Fullest cuts of each traffic, and links, to print")
      ->check(CLI::Range(0, 10000));
  command.add_option("--svg", svg, svg_help);
}

}  // namespace

PredictCommand::PredictCommand(CLI::App& app)
    : command_(app.add_subcommand("predict", "Predict what an order of ranks costs")) {
  words_.Declare(*command_);
  command_->add_option("--order", order_,
                       "A rank file, or as-allocated, random, block (Slurm's) or planned");
  DeclareCommon(*command_, count_, svg_, "A heat map of the links' loads; empty: none");
}

absl::Status PredictCommand::Run() const {
  WEFT_RETURN_IF_ERROR(CheckOutput(svg_));
  WEFT_ASSIGN_OR_RETURN(Input input, LoadInput(words_));
  std::vector<Candidate> candidates(1);
  WEFT_ASSIGN_OR_RETURN(candidates[0], MakeCandidate(input, order_));
  WEFT_ASSIGN_OR_RETURN(std::vector<HotCut> cuts,
                        HotCuts(input, candidates[0], static_cast<size_t>(count_)));
  WEFT_ASSIGN_OR_RETURN(std::vector<double> seconds, LinkSeconds(input, candidates[0]));
  std::vector<HotLink> links = HottestLinks(input, seconds, static_cast<size_t>(count_));
  if (input.tables) {
    absl::PrintF("job    %s; %s\n\n%s\n%s\n%s", input.Describe(), ToString(input.options.balance),
                 CostTable(input, candidates), HotCutTable(cuts), LinkTable(input, links, {}, ""));
  }
  if (!svg_.empty()) {
    WEFT_RETURN_IF_ERROR(Draw(input, svg_, absl::StrCat("Order ", order_, ": ", input.Describe()),
                              seconds, Largest(seconds)));
  }
  if (words_.json.empty()) return absl::OkStatus();
  ordered_json json;
  json["job"] = input.Describe();
  json["balance"] = ToString(input.options.balance);
  json["order"] = CandidateJson(input, candidates[0]);
  json["fullest_cuts"] = HotCutsJson(cuts);
  json["fullest_links"] = LinksJson(input, links);
  return WriteOutput(words_.json, JsonText(json, 2) + "\n");
}

CompareCommand::CompareCommand(CLI::App& app)
    : command_(app.add_subcommand("compare", "Two orders side by side")) {
  words_.Declare(*command_);
  const char* help = "A rank file, or as-allocated, random, block (Slurm's) or planned";
  command_->add_option("A", a_, help)->required();
  command_->add_option("B", b_, help)->required();
  DeclareCommon(*command_, count_, svg_,
                "Heat maps of the links' loads on one scale: x.svg gives x.a.svg and x.b.svg");
}

absl::Status CompareCommand::Run() const {
  if (!svg_.empty()) {
    for (const char* mark : kMarks) WEFT_RETURN_IF_ERROR(CheckOutput(WithMark(svg_, mark)));
  }
  WEFT_ASSIGN_OR_RETURN(Input input, LoadInput(words_));
  std::vector<Candidate> both;
  std::vector<std::vector<double>> seconds;
  std::vector<std::vector<HotLink>> links;
  for (const std::string& name : {a_, b_}) {
    WEFT_ASSIGN_OR_RETURN(Candidate candidate, MakeCandidate(input, name));
    WEFT_ASSIGN_OR_RETURN(std::vector<double> load, LinkSeconds(input, candidate));
    links.push_back(HottestLinks(input, load, static_cast<size_t>(count_)));
    seconds.push_back(std::move(load));
    both.push_back(std::move(candidate));
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<CutComparison> cuts, CompareCuts(input, both[0], both[1]));
  if (input.tables) {
    absl::PrintF("job    %s; %s\n\n%s\n%s\n%s\nA, %s:\n%s\nB, %s:\n%s", input.Describe(),
                 ToString(input.options.balance), CostTable(input, both),
                 WhyText(input, both[0], both[1]),
                 CutComparisonTable(cuts, static_cast<size_t>(count_)), a_,
                 LinkTable(input, links[0], seconds[1], "B"), b_,
                 LinkTable(input, links[1], seconds[0], "A"));
  }
  if (!svg_.empty()) {
    double hottest = std::max(Largest(seconds[0]), Largest(seconds[1]));
    for (size_t i = 0; i < kMarks.size(); ++i) {
      WEFT_RETURN_IF_ERROR(Draw(input, WithMark(svg_, kMarks[i]),
                                absl::StrCat("Order ", both[i].name, ": ", input.Describe()),
                                seconds[i], hottest));
    }
  }
  if (words_.json.empty()) return absl::OkStatus();
  ordered_json json;
  json["job"] = input.Describe();
  json["balance"] = ToString(input.options.balance);
  for (size_t i = 0; i < kMarks.size(); ++i) {
    ordered_json one = CandidateJson(input, both[i]);
    one["fullest_links"] = LinksJson(input, links[i]);
    json[kMarks[i]] = std::move(one);
  }
  json["cuts"] = CutComparisonJson(cuts);
  json["a_over_b"] = absl::FDivDuration(both[0].cost.exposed, both[1].cost.exposed);
  return WriteOutput(words_.json, JsonText(json, 2) + "\n");
}

}  // namespace weft::plan
