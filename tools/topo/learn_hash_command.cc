#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/command_line.h"
#include "tools/topo/flow_probing.h"
#include "tools/topo/hash_search.h"
#include "tools/topo/option_checks.h"
#include "tools/topo/probe_commands.h"
#include "topology/discovery/fit_hash.h"
#include "topology/discovery/probed_flows.h"
#include "topology/ecmp/hash_text.h"

namespace weft::topo {
namespace {

using topology::Endpoint;
using topology::SeenNic;

const char kFooter[] =
    R"(Runs on the hosts of a job, as weft-topo discover does, with the folder that it wrote, which rank 0
reads: weft-run ... -- weft-topo learn-hash fabric. Of each switch with a choice the hash is found that
explains what its flows did: Linux's, its seed searched for by all ranks, or one of switch silicon's, or a
linear map. It is then checked with ports that were not probed before, and written into hashes.txt. For a
switch that none of them explains a table is written: the ways of some ports between all hosts, each asked
for twice. What does not predict a share --right of fresh ports, or told nothing, is written as unknown.
Exit status: 0 when each switch has a hash or a table, and hashes predict fresh ports; 1 when not; 2 for
wrong usage.)";

// What each switch hashes. Every rank comes to the same result.
class Learning {
 public:
  Learning(JobHosts& job, KnownFabric& known, absl::Duration limit, double wrong)
      : job_(job), known_(known), limit_(limit), wrong_(wrong) {}

  absl::Status Learn(const std::map<NodeId, topology::SwitchChoices>& switches) {
    std::vector<NodeId> wanted;
    for (const auto& [node, _] : switches) wanted.push_back(node);
    std::set<NodeId> linear;
    for (const auto& [node, one] : switches) {
      auto fitted =
          topology::FitLinear(static_cast<uint32_t>(one.members.size()), one.seen, wrong_);
      if (!fitted.has_value()) continue;
      linear.insert(node);
      linear_.emplace(node, *std::move(fitted));
    }
    HashSearch search(job_, switches, wanted, linear, wrong_);
    WEFT_ASSIGN_OR_RETURN(found_, search.Run(SystemClock().Now() + limit_));
    for (const auto& [node, hash] : found_.hashes) Fit(node, switches.at(node), hash);
    FitLikeOthers(switches);
    fitted_.merge(linear_);
    for (const auto& [node, one] : switches) Take(node, one);
    return absl::OkStatus();
  }

  // Switches that no hash explains.
  std::set<NodeId> Unexplained(const std::map<NodeId, topology::SwitchChoices>& switches) const {
    std::set<NodeId> out;
    for (const auto& [node, _] : switches) {
      if (learned_.count(node) == 0) out.insert(node);
    }
    return out;
  }

  // Tables of those from what they did with `flows`.
  absl::Status TakeTables(const std::map<NodeId, topology::SwitchChoices>& switches,
                          const std::set<NodeId>& wanted,
                          absl::Span<const topology::ProbedFlow> flows,
                          const FlowProbing& probing) {
    const auto choices = topology::ChoicesOf(*known_.routes, flows);
    for (NodeId node : wanted) {
      const topology::SwitchChoices& before = switches.at(node);
      const auto found = choices.find(node);
      if (found == choices.end() || found->second.members != before.members) continue;
      topology::HashTable table(static_cast<uint32_t>(before.members.size()));
      for (const topology::HashObservation& one : found->second.seen) {
        table.Add(one.tuple, one.member);
      }
      // Two wrong answers of one flow agree by chance once in members - 1. With none that differ,
      // so few that 95 of 100 such tables would have shown one.
      const double differing = std::max<double>(1.5, static_cast<double>(probing.differing()));
      const double one_wrong =
          std::min(0.5, differing / static_cast<double>(std::max<int64_t>(1, 2 * probing.twice())));
      table.SetWrong(one_wrong * one_wrong / static_cast<double>(before.members.size() - 1));
      const std::string& name = known_.fabric->node(node).name;
      if (job_.rank() == 0) {
        absl::PrintF(
            "%-10s a table of %d flows, each asked for twice; one is wrong by a chance of "
            "%.2g\n",
            name, table.flows(), table.wrong());
        std::fflush(stdout);
      }
      topology::SwitchHashOptions options;
      options.function = topology::HashFunction::kTable;
      options.table = std::make_shared<const topology::HashTable>(std::move(table));
      WEFT_ASSIGN_OR_RETURN(const topology::SwitchHash hash, topology::SwitchHash::Create(options));
      known_.file.hashes.insert_or_assign(name, hash);
      known_.file.unknown.erase(name);
      tables_.insert(node);
    }
    return absl::OkStatus();
  }
  const std::set<NodeId>& tables() const { return tables_; }

  const std::set<NodeId>& learned() const { return learned_; }
  // Which hashes were tried, for a switch that none of them explains.
  std::string Tried() const {
    if (found_.in_time) {
      return "no known hash of switch silicon explains it, nor Linux's with any of 2^32 seeds";
    }
    return absl::StrFormat(
        "the time ran out (--limit %s) when %.1f %% of Linux's 2^32 seeds had been tried; a longer "
        "--limit or more cores try all",
        absl::FormatDuration(limit_), 100 * found_.tried_share);
  }

 private:
  // Mostly all switches are set alike.
  void FitLikeOthers(const std::map<NodeId, topology::SwitchChoices>& switches) {
    std::vector<topology::SwitchHash> known;
    for (const auto& [_, fitted] : fitted_) known.push_back(fitted.hash);
    for (const auto& [node, one] : switches) {
      for (size_t i = 0; i < known.size() && fitted_.count(node) == 0; ++i) {
        Fit(node, one, known[i]);
      }
    }
  }

  void Fit(NodeId node, const topology::SwitchChoices& one, const topology::SwitchHash& hash) {
    auto fitted =
        topology::TryHash(hash, static_cast<uint32_t>(one.members.size()), one.seen, wrong_);
    if (fitted.has_value()) fitted_.try_emplace(node, *std::move(fitted));
  }

  void Take(NodeId node, const topology::SwitchChoices& one) {
    const std::string& name = known_.fabric->node(node).name;
    known_.file.hashes.erase(name);
    known_.file.orders.erase(name);
    known_.file.unknown.erase(name);
    const auto found = fitted_.find(node);
    if (found == fitted_.end()) {
      known_.file.unknown.insert(name);
      if (job_.rank() == 0) {
        absl::PrintF("%-10s not found, from %d flows: %s\n", name, one.seen.size(), Tried());
      }
      return;
    }
    const topology::FittedHash& fitted = found->second;
    learned_.insert(node);
    known_.file.hashes.insert_or_assign(name, fitted.hash);
    std::vector<std::string> order;
    bool same = true;
    for (size_t i = 0; i < fitted.member_at.size(); ++i) {
      order.push_back(known_.fabric->node(one.members[fitted.member_at[i]]).name);
      same = same && fitted.member_at[i] == i;
    }
    if (!same) known_.file.orders[name] = order;
    if (job_.rank() > 0) return;
    const auto& linear = fitted.hash.options().linear;
    absl::PrintF("%-10s %s, %d of %d flows as it says; by chance 1 in 10^%.0f\n", name,
                 linear == nullptr
                     ? topology::HashText(fitted.hash.options())
                     : absl::StrCat("a linear map of ", linear->dimensions(), " dimensions"),
                 fitted.right, one.seen.size(), -fitted.chance_log10);
    std::fflush(stdout);
  }

  JobHosts& job_;
  KnownFabric& known_;
  const absl::Duration limit_;
  const double wrong_;
  FoundHashes found_;
  std::map<NodeId, topology::FittedHash> fitted_, linear_;
  std::set<NodeId> learned_, tables_;
};

// The hashes of `known`, as if those that are still unknown were of no interest.
absl::StatusOr<topology::FabricHashes> HashesOf(const KnownFabric& known,
                                                const std::string& folder) {
  topology::HashFile file = known.file;
  file.unknown.clear();
  return topology::MakeHashes(*known.fabric, file, absl::StrCat(folder, "/hashes.txt"));
}

struct FolderFiles {
  std::string fabric, hashes;
};

// Every rank: the files of the folder as rank 0 reads them, to the byte.
absl::StatusOr<FolderFiles> ReadFiles(JobHosts& job, const std::filesystem::path& folder) {
  const auto read = [&]() -> absl::StatusOr<std::string> {
    WEFT_ASSIGN_OR_RETURN(const std::string fabric, ReadFile((folder / "fabric.toml").string()));
    WEFT_ASSIGN_OR_RETURN(const std::string hashes, ReadFile((folder / "hashes.txt").string()));
    return absl::StrCat(fabric.size(), " ", fabric, hashes);
  };
  WEFT_ASSIGN_OR_RETURN(const std::string text,
                        job.FromRankZero("files", job.rank() == 0 ? read() : std::string()));
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(text, absl::MaxSplits(' ', 1));
  size_t size = 0;
  if (!absl::SimpleAtoi(parts.first, &size) || size > parts.second.size()) {
    return absl::DataLossError("rank 0 has sent no two files");
  }
  return FolderFiles{std::string(parts.second.substr(0, size)),
                     std::string(parts.second.substr(size))};
}

// What is wrong with switches of which no choice is told, as they choose among several cables to
// one switch.
std::string ParallelProblem(const topology::Fabric& fabric,
                            const std::map<NodeId, NodeId>& parallel) {
  const auto& [at, neighbour] = *parallel.begin();
  return absl::StrCat(
      fabric.node(at).name, " has several cables to ", fabric.node(neighbour).name, " (of ",
      parallel.size(),
      " such switches): probes tell which switch a flow comes to, and not over which cable; "
      "what is hashed can be learned where fabric.toml has one cable in place of them, of the "
      "bandwidth of all, as weft-topo discover writes it");
}

// Writes what was found, and as unknown what was not, or what the check does not bear out.
absl::Status Judge(const topology::PredictionCheck& check, const std::set<NodeId>& learned,
                   const std::set<NodeId>& tables,
                   const std::map<NodeId, topology::SwitchChoices>& switches,
                   const std::string& tried, double right_min, const std::string& folder,
                   KnownFabric& known) {
  const topology::Fabric& fabric = *known.fabric;
  const absl::Status verdict = check.Verdict(fabric, learned, right_min);
  std::vector<Endpoint> nics;
  for (const auto& [_, nic] : known.endpoint) nics.push_back(nic);
  std::map<NodeId, NodeId> parallel = topology::SwitchesWithParallelCables(*known.routes, nics);
  for (const auto& [node, _] : switches) parallel.erase(node);
  std::vector<std::string> silent;
  for (NodeId node : topology::SwitchesWithChoice(*known.routes, nics)) {
    if (switches.count(node) > 0 || parallel.count(node) > 0) continue;
    silent.push_back(fabric.node(node).name);
  }
  const std::set<NodeId> failed = check.Failed(learned, right_min);
  const auto forget = [&](const std::string& name) {
    known.file.hashes.erase(name);
    known.file.orders.erase(name);
    known.file.unknown.insert(name);
  };
  for (NodeId node : failed) forget(fabric.node(node).name);
  for (const std::string& name : silent) forget(name);
  for (const auto& [node, _] : parallel) forget(fabric.node(node).name);
  const std::string path = (std::filesystem::path(folder) / "hashes.txt").string();
  WEFT_RETURN_IF_ERROR(WriteOutput(path, topology::HashFileText(known.file)));
  std::vector<std::string> problems;
  for (const auto& [node, one] : switches) {
    if (learned.count(node) > 0 || tables.count(node) > 0) continue;
    problems.push_back(absl::StrCat("what ", fabric.node(node).name, " hashes was not found (of ",
                                    switches.size() - learned.size() - tables.size(),
                                    " switches): ", tried));
    break;
  }
  if (!parallel.empty()) problems.push_back(ParallelProblem(fabric, parallel));
  if (!silent.empty()) {
    problems.push_back(absl::StrCat("no flow told what ", silent.front(), " chooses (of ",
                                    silent.size(), " switches with a choice that told nothing)"));
  }
  if (!learned.empty() && !verdict.ok()) problems.emplace_back(verdict.message());
  if (problems.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(absl::StrJoin(problems, "; "), "; ", path, " says unknown of these switches"));
}

}  // namespace

LearnHashCommand::LearnHashCommand(CLI::App& app)
    : command_(app.add_subcommand("learn-hash",
                                  "Find what the switches between the hosts of a job hash")) {
  command_->option_defaults()->always_capture_default();
  command_->add_option("FOLDER", folder_, "Folder that weft-topo discover has written")->required();
  words_.Declare(*command_);
  command_->add_option("--limit", limit_, "How long seeds are searched for, at most: 50s, 10m")
      ->check(CheckLimit);
  command_->add_option("--wrong", wrong_, "Share of flows that a hash may fail to explain")
      ->check(RealRange(0, 0.3));
  command_
      ->add_option("--check-ports", check_ports_,
                   "Fresh source ports that a host probes towards each leaf at the end")
      ->check(CLI::Range(1, 4096));
  command_
      ->add_option("--right", right_,
                   "Share of fresh ports, and of each switch's choices for them, that must be as "
                   "predicted")
      ->check(RealRange(0.5, 1));
  command_->footer(kFooter);
}

absl::StatusOr<int> LearnHashCommand::Run() const {
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<JobHosts> job,
                        JobHosts::Meet(words_, "weft-topo learn-hash"));
  WEFT_RETURN_IF_ERROR(job->Conclude(Learn(*job, DurationOf(limit_))));
  return EXIT_SUCCESS;
}

absl::Status LearnHashCommand::Learn(JobHosts& job, absl::Duration limit) const {
  SystemClock clock;
  const absl::Time begin = clock.Now();
  const std::filesystem::path folder(folder_);
  WEFT_ASSIGN_OR_RETURN(const FolderFiles files, ReadFiles(job, folder));
  WEFT_ASSIGN_OR_RETURN(KnownFabric known,
                        ReadKnownFabric(files.fabric, files.hashes, folder_, job));
  // What cannot be checked later is an error now.
  WEFT_RETURN_IF_ERROR(HashesOf(known, folder_).status());
  std::vector<Endpoint> nics;
  for (const auto& [_, nic] : known.endpoint) nics.push_back(nic);
  if (topology::SwitchesWithChoice(*known.routes, nics).empty()) {
    if (job.rank() == 0) {
      absl::PrintF("no switch between these hosts has a choice: there is nothing to learn\n");
    }
    return absl::OkStatus();
  }
  WEFT_RETURN_IF_ERROR(job.TryOnRankZero(
      "hashes", [&folder] { return CheckOutput((folder / "hashes.txt").string()); }));
  const auto parallel = topology::SwitchesWithParallelCables(*known.routes, nics);
  FlowProbing probing(job, known);
  WEFT_ASSIGN_OR_RETURN(std::vector<topology::ProbedFlow> seen,
                        probing.Flows("flows", words_.ports, 2000, true));
  const auto switches = topology::ChoicesOf(*known.routes, seen);
  if (switches.empty() && !parallel.empty()) {
    return absl::FailedPreconditionError(ParallelProblem(*known.fabric, parallel));
  }
  if (switches.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("none of ", probing.asked(),
                     " flows told which way a switch chose: routers neither record routes nor "
                     "answer by the names that hashes.txt has"));
  }
  Learning learning(job, known, limit, wrong_);
  WEFT_RETURN_IF_ERROR(learning.Learn(switches));
  const std::set<NodeId> unexplained = learning.Unexplained(switches);
  if (!unexplained.empty()) {
    WEFT_ASSIGN_OR_RETURN(const auto flows, probing.TableFlows(unexplained));
    WEFT_RETURN_IF_ERROR(learning.TakeTables(switches, unexplained, flows, probing));
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<topology::ProbedFlow> fresh,
                        probing.Flows("fresh", check_ports_, 5000, false));
  if (job.rank() > 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(topology::FabricHashes hashes, HashesOf(known, folder_));
  topology::PredictionCheck check =
      topology::CheckPredictions(*known.routes, hashes, learning.learned(), fresh);
  check.asked = probing.asked();
  if (!learning.learned().empty()) {
    absl::PrintF(
        "checked   %d of %d fresh ports take the path that is predicted (%.2f %%); %d were "
        "asked\n",
        check.flows.right, check.flows.told, 100 * check.flows.share(), check.asked);
  }
  absl::PrintF("%d probes of this host, %d without an answer, in %.1f s\n", job.statistics().sent,
               job.statistics().lost, absl::ToDoubleSeconds(clock.Now() - begin));
  std::fflush(stdout);
  return Judge(check, learning.learned(), learning.tables(), switches, learning.Tried(), right_,
               folder_, known);
}

}  // namespace weft::topo
