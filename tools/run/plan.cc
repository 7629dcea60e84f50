#include "tools/run/plan.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <set>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/command.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/text_lines.h"
#include "net/tcp/interface.h"
#include "net/tcp/planned_ways.h"
#include "topology/plan/connection_plan.h"

namespace weft::run {
namespace {

constexpr int kNotVerified = 3;                            // of weft-plan verify
constexpr absl::Duration kVerifyMost = absl::Seconds(20);  // of a busy machine; it stops by itself

// The host of the plan that this is.
absl::StatusOr<std::string> OwnName(const topology::ConnectionPlan& plan) {
  WEFT_ASSIGN_OR_RETURN(std::vector<net::Interface> interfaces, net::ListInterfaces());
  for (const net::Interface& interface : interfaces) {
    if (auto host = plan.HostOf(net::ToIpAddress(interface.address)); host.ok()) return *host;
  }
  std::string addresses;
  for (const net::Interface& interface : interfaces) {
    absl::StrAppend(&addresses, addresses.empty() ? "" : ", ",
                    net::ToIpAddress(interface.address).ToString());
  }
  return absl::FailedPreconditionError(absl::StrCat(
      plan.origin(), " is a plan for other hosts: it names none of this one's addresses, ",
      addresses));
}

// "rank host gpu" a line, each rank of the job once: the ranks of `host`, by GPU.
absl::StatusOr<std::vector<int>> RanksOf(const std::string& path, const std::string& host,
                                         int world) {
  WEFT_ASSIGN_OR_RETURN(std::string text, ReadFile(path));
  std::map<int, int> by_gpu;
  std::set<int> met;
  TextLines lines(text, path);
  std::vector<absl::string_view> words;
  while (lines.NextWords(words)) {
    int rank = -1, gpu = -1;
    if (words.size() != 3 || !absl::SimpleAtoi(words[0], &rank) ||
        !absl::SimpleAtoi(words[2], &gpu)) {
      return lines.Error("a line is RANK HOST GPU");
    }
    const bool is_new = rank >= 0 && rank < world && met.insert(rank).second;
    if (!is_new || (words[1] == host && !by_gpu.try_emplace(gpu, rank).second)) {
      return lines.Error("rank ", rank, " on GPU ", gpu, " of ", words[1],
                         "; right is each of the plan's ", world,
                         " ranks once, on a GPU of its own");
    }
  }
  if (static_cast<int>(met.size()) < world) {
    int missing = 0;
    for (const int rank : met) missing += rank == missing ? 1 : 0;
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": rank ", missing, " of ", world, " is missing"));
  }
  std::vector<int> ranks;
  for (const auto& [_, rank] : by_gpu) ranks.push_back(rank);
  return ranks;
}

// weft-plan beside this program asks the network. Paths that have moved are an error; where too few
// switches answer to tell, that is one too, or the user is warned. A build without weft-plan asks
// for nothing.
absl::Status Verify(const std::string& folder, const std::string& host, bool refuses_unverified) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  const std::filesystem::path program = self.parent_path() / "weft-plan";
  if (error || !std::filesystem::exists(program)) return absl::OkStatus();
  absl::StatusOr<CommandOutput> said = RunCommand(
      {program.string(), "verify", folder, "--host", host, "--flows", "16", "--limit", "1s"},
      kVerifyMost);
  if (!said.ok()) return Annotate(said.status(), "weft-plan verify");
  if (said->status == 0) return absl::OkStatus();
  if (said->status == kNotVerified && refuses_unverified) {
    return absl::FailedPreconditionError(absl::StrCat(
        "whether ", folder, " is stale is not known, and --plan-unverified is refuse: ",
        absl::StripAsciiWhitespace(said->text)));
  }
  if (said->status == kNotVerified) {
    absl::FPrintF(stderr, "weft-run: warning: whether %s is stale is not known: %s\n", folder,
                  absl::StripAsciiWhitespace(said->text));
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StripAsciiWhitespace(said->text));
}

}  // namespace

absl::StatusOr<PlannedHost> ReadPlan(const RunOptions& options) {
  const std::filesystem::path folder = std::filesystem::absolute(options.plan);
  WEFT_ASSIGN_OR_RETURN(auto plan, topology::ConnectionPlan::Load(folder.string()));
  WEFT_ASSIGN_OR_RETURN(const std::string host, OwnName(*plan));
  WEFT_RETURN_IF_ERROR(Verify(folder.string(), host, options.plan_unverified == "refuse"));
  PlannedHost out;
  const std::string path = (folder / "ranks.txt").string();
  WEFT_ASSIGN_OR_RETURN(out.ranks, RanksOf(path, host, plan->text().ranks));
  const int world = options.ranks * options.nodes;
  if (static_cast<int>(out.ranks.size()) != options.ranks || plan->text().ranks != world) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.plan, " is a plan for ", plan->text().ranks, " ranks, ",
                     out.ranks.size(), " of them on this host (", host, "); this job has ", world,
                     ", and ", options.ranks, " here"));
  }
  out.variables.emplace_back("WEFT_PLAN", folder.string());
  for (const auto& [name, file] : {std::pair("NCCL_TOPO_FILE", "nccl-topo.xml"),
                                   std::pair("NCCL_GRAPH_FILE", "nccl-graph.xml")}) {
    if (std::filesystem::exists(folder / file)) {
      out.variables.emplace_back(name, (folder / file).string());
    }
  }
  return out;
}

}  // namespace weft::run
