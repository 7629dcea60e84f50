#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/topo/flow_probing.h"
#include "tools/topo/hash_search.h"
#include "tools/topo/probe_commands.h"
#include "topology/discovery/fit_hash.h"
#include "topology/discovery/probed_flows.h"
#include "topology/ecmp/hash_text.h"

namespace weft::topo {
namespace {

using nlohmann::json;
using topology::Endpoint;
using topology::SeenNic;

const char kFooter[] =
    R"(Runs on the hosts of a job, as weft-topo discover does, with the folder that it wrote, which rank 0
reads: weft-run ... -- weft-topo learn-hash fabric. Of each switch with a choice the hash is found that
explains what its flows did: Linux's, its seed searched for by all ranks, or one of switch silicon's. It is
then checked with ports that were not probed before, and written into hashes.txt. What was not found, or does
not predict a share --right of those ports, is written as unknown.
Exit status: 0 when all hashes were found and predict fresh ports; 1 when not; 2 for wrong usage.)";

// What each switch hashes. Every rank comes to the same result.
class Learning {
 public:
  Learning(JobHosts& job, KnownFabric& known, absl::Time deadline, double wrong)
      : job_(job), known_(known), deadline_(deadline), wrong_(wrong) {}

  absl::Status Learn(const std::map<NodeId, topology::SwitchChoices>& switches) {
    std::vector<NodeId> wanted;
    for (const auto& [node, _] : switches) wanted.push_back(node);
    HashSearch search(job_, switches, wanted, wrong_);
    WEFT_ASSIGN_OR_RETURN(const auto found, search.Run(deadline_));
    for (const auto& [node, hash] : found) Fit(node, switches.at(node), hash);
    FitLikeOthers(switches);
    for (const auto& [node, one] : switches) Take(node, one);
    return absl::OkStatus();
  }

  const std::set<NodeId>& learned() const { return learned_; }

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
        absl::PrintF("%-10s not found: no hash explains its %d flows\n", name, one.seen.size());
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
    absl::PrintF("%-10s %s, %d of %d flows as it says; by chance 1 in 10^%.0f\n", name,
                 topology::HashText(fitted.hash.options()), fitted.right, one.seen.size(),
                 -fitted.chance_log10);
    std::fflush(stdout);
  }

  JobHosts& job_;
  KnownFabric& known_;
  const absl::Time deadline_;
  const double wrong_;
  std::map<NodeId, topology::FittedHash> fitted_;
  std::set<NodeId> learned_;
};

// The hashes of `known`, as if those that are still unknown were of no interest.
absl::StatusOr<topology::FabricHashes> HashesOf(const KnownFabric& known,
                                                const std::string& folder) {
  topology::HashFile file = known.file;
  file.unknown.clear();
  return topology::MakeHashes(*known.fabric, file, absl::StrCat(folder, "/hashes.txt"));
}

// Every rank: the two files of the folder, by name, as rank 0 reads them.
absl::StatusOr<std::map<std::string, std::string>> ReadFiles(JobHosts& job,
                                                             const std::filesystem::path& folder) {
  const auto read = [&]() -> absl::StatusOr<std::string> {
    json files = json::object();
    for (const char* name : {"fabric.toml", "hashes.txt"}) {
      WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile((folder / name).string()));
      files[name] = text;
    }
    return files.dump();
  };
  WEFT_ASSIGN_OR_RETURN(const std::string text,
                        job.FromRankZero("files", job.rank() == 0 ? read() : std::string()));
  return json::parse(text).get<std::map<std::string, std::string>>();
}

// Writes what was found, and as unknown what was not, or what the check does not bear out.
absl::Status Judge(const topology::PredictionCheck& check, const std::set<NodeId>& learned,
                   const std::map<NodeId, topology::SwitchChoices>& switches, double right_min,
                   const std::string& folder, KnownFabric& known) {
  const topology::Fabric& fabric = *known.fabric;
  const absl::Status verdict = check.Verdict(fabric, learned, right_min);
  std::vector<Endpoint> nics;
  for (const auto& [_, nic] : known.endpoint) nics.push_back(nic);
  std::vector<std::string> silent;
  for (NodeId node : topology::SwitchesWithChoice(*known.routes, nics)) {
    if (switches.count(node) == 0) silent.push_back(fabric.node(node).name);
  }
  const std::set<NodeId> failed = check.Failed(learned, right_min);
  const auto forget = [&](const std::string& name) {
    known.file.hashes.erase(name);
    known.file.orders.erase(name);
    known.file.unknown.insert(name);
  };
  for (NodeId node : failed) forget(fabric.node(node).name);
  for (const std::string& name : silent) forget(name);
  const std::string path = (std::filesystem::path(folder) / "hashes.txt").string();
  WEFT_RETURN_IF_ERROR(WriteOutput(path, topology::HashFileText(known.file)));
  std::vector<std::string> problems;
  for (const auto& [node, one] : switches) {
    if (learned.count(node) > 0) continue;
    problems.push_back(absl::StrCat("what ", fabric.node(node).name, " hashes was not found (of ",
                                    switches.size() - learned.size(),
                                    " switches): neither Linux's with a seed that was tried nor a "
                                    "known one of switch silicon"));
    break;
  }
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
  command_->add_option("FOLDER", folder_, "That weft-topo discover wrote")->required();
  words_.Declare(*command_);
  command_->add_option("--limit", limit_, "How long seeds are searched for, at most: 50s, 10m");
  command_->add_option("--wrong", wrong_, "Share of flows that a hash may fail to explain")
      ->check(CLI::Range(0.0, 0.3));
  command_
      ->add_option("--check-ports", check_ports_,
                   "Fresh source ports that a host probes towards each leaf at the end")
      ->check(CLI::Range(1, 4096));
  command_
      ->add_option("--right", right_,
                   "Share of fresh ports, and of each switch's choices for them, that must be as "
                   "predicted")
      ->check(CLI::Range(0.5, 1.0));
  command_->footer(kFooter);
}

absl::StatusOr<int> LearnHashCommand::Run() const {
  absl::Duration limit;
  if (!absl::ParseDuration(limit_, &limit) || limit <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--limit ", limit_, " is no duration; right are 50s and 10m"));
  }
  WEFT_ASSIGN_OR_RETURN(std::unique_ptr<JobHosts> job,
                        JobHosts::Meet(words_, "weft-topo learn-hash"));
  WEFT_RETURN_IF_ERROR(job->Conclude(Learn(*job, limit)));
  return EXIT_SUCCESS;
}

absl::Status LearnHashCommand::Learn(JobHosts& job, absl::Duration limit) const {
  SystemClock clock;
  const absl::Time begin = clock.Now();
  const std::filesystem::path folder(folder_);
  WEFT_ASSIGN_OR_RETURN(const auto files, ReadFiles(job, folder));
  WEFT_ASSIGN_OR_RETURN(KnownFabric known, ReadKnownFabric(files.at("fabric.toml"),
                                                           files.at("hashes.txt"), folder_, job));
  // What cannot be checked later is an error now.
  WEFT_RETURN_IF_ERROR(HashesOf(known, folder_).status());
  FlowProbing probing(job, known);
  WEFT_ASSIGN_OR_RETURN(std::vector<topology::ProbedFlow> seen,
                        probing.Flows("flows", words_.ports, 2000, true));
  const auto switches = topology::ChoicesOf(*known.routes, seen);
  if (switches.empty()) {
    return absl::FailedPreconditionError(
        absl::StrCat("none of ", probing.asked(),
                     " flows told which way a switch chose: routers neither record routes nor "
                     "answer by the names that hashes.txt has"));
  }
  Learning learning(job, known, clock.Now() + limit, wrong_);
  WEFT_RETURN_IF_ERROR(learning.Learn(switches));
  WEFT_ASSIGN_OR_RETURN(std::vector<topology::ProbedFlow> fresh,
                        probing.Flows("fresh", check_ports_, 5000, false));
  if (job.rank() > 0) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(topology::FabricHashes hashes, HashesOf(known, folder_));
  topology::PredictionCheck check =
      topology::CheckPredictions(*known.routes, hashes, learning.learned(), fresh);
  check.asked = probing.asked();
  absl::PrintF(
      "checked   %d of %d fresh ports take the path that is predicted (%.2f %%); %d were "
      "asked\n",
      check.flows.right, check.flows.told, 100 * check.flows.share(), check.asked);
  absl::PrintF("%d probes of this host, %d without an answer, in %.1f s\n", job.statistics().sent,
               job.statistics().lost, absl::ToDoubleSeconds(clock.Now() - begin));
  std::fflush(stdout);
  return Judge(check, learning.learned(), switches, right_, folder_, known);
}

}  // namespace weft::topo
