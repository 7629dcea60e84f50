#include "tools/plan/order_command.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/plan/plan_files.h"
#include "tools/plan/report.h"

namespace weft::plan {
namespace {

constexpr const char* kFooter = R"(Files in --out:
  ranks.txt          rank, host and GPU, a line a rank; what --order and compare read
  slurm.hosts        srun --distribution=arbitrary with SLURM_HOSTFILE=slurm.hosts
  openmpi.rankfile   mpirun --map-by rankfile:file=openmpi.rankfile (before 5.0: --rankfile)
  torchrun.sh        on every host: sh torchrun.sh train.py ...
  nccl-topo.xml      NCCL_TOPO_FILE, for hosts as [node] and the fabric describe them
  nccl-graph.xml     NCCL_GRAPH_FILE, likewise

Example:
  weft-plan order --fabric megascale:hosts=1536 --layout tp=8,dp=192,pp=8 --model gpt-175b --out plan)";

}  // namespace

OrderCommand::OrderCommand(CLI::App& app)
    : command_(app.add_subcommand("order", "Plan the order of ranks, say why, write it")) {
  command_->footer(kFooter);
  words_.Declare(*command_);
  command_->add_option("--against", against_,
                       "Orders to compare with: as-allocated, random, block (Slurm's), or rank "
                       "files; the first also for the reasons");
  command_->add_option("-o,--out", out_, "Folder for the files of the order; empty: none");
  command_
      ->add_option("--cores-per-rank", cores_per_rank_, "Cores of each rank in openmpi.rankfile")
      ->check(CLI::Range(1, 1024));
  command_->add_option("--nic-prefix", nic_prefix_,
                       "Names of NICs in nccl-topo.xml, without their numbers");
}

absl::Status OrderCommand::Run() const {
  WEFT_ASSIGN_OR_RETURN(Input input, LoadInput(words_, out_));
  std::vector<Candidate> candidates;
  for (const std::string& name : against_) {
    WEFT_ASSIGN_OR_RETURN(Candidate candidate, MakeCandidate(input, name));
    candidates.push_back(std::move(candidate));
  }
  WEFT_ASSIGN_OR_RETURN(Candidate planned, MakeCandidate(input, "planned"));
  candidates.push_back(std::move(planned));
  const Candidate& best = candidates.back();
  WEFT_ASSIGN_OR_RETURN(std::vector<HotCut> hot, HotCuts(input, best, 3));
  if (input.tables) {
    absl::PrintF("job    %s; %s\norder  %s (seed %d, %.1f s)\n\n%s\n%s\n%s", input.Describe(),
                 ToString(input.options.balance), best.how, words_.seed, best.seconds,
                 CostTable(input, candidates), WhyText(input, candidates.front(), best),
                 HotCutTable(hot));
  }
  std::vector<std::string> files;
  if (!out_.empty()) {
    WEFT_ASSIGN_OR_RETURN(files,
                          WriteOrderFiles(input, best, {cores_per_rank_, nic_prefix_}, out_));
    if (input.tables) {
      absl::PrintF("\n%d files in %s\n", static_cast<int>(files.size()), out_);
    }
  }
  if (words_.json.empty()) return absl::OkStatus();
  nlohmann::ordered_json json;
  json["job"] = input.Describe();
  json["balance"] = ToString(input.options.balance);
  json["seed"] = words_.seed;
  json["orders"] = nlohmann::ordered_json::array();
  for (const Candidate& one : candidates) json["orders"].push_back(CandidateJson(input, one));
  json["fullest_cuts"] = HotCutsJson(hot);
  json["files"] = files;
  return WriteOutput(words_.json, JsonText(json, 2) + "\n");
}

}  // namespace weft::plan
