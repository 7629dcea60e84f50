#include "tools/plan/input.h"

#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/command_line.h"
#include "tools/plan/progress.h"
#include "topology/fabric/load.h"
#include "topology/job/hostlist.h"
#include "topology/order/bound.h"
#include "topology/order/find_hosts.h"
#include "topology/order/rank_files.h"

namespace weft::plan {

using topology::CostModel;
using topology::Placement;
using topology::RankOrder;

void InputWords::Declare(CLI::App& app) {
  app.option_defaults()->always_capture_default();
  app.add_option(
         "--fabric", fabric,
         "A fabric file (docs/fabric-format.md, Slurm's topology.conf, ...) or a generator, "
         "as megascale:hosts=1536")
      ->required();
  app.add_option("--hosts", hosts,
                 "The allocation as a hostlist, h[0-63,70]; in its order ranks would run if nobody "
                 "planned; empty: --hosts-file, else every host of the fabric");
  app.add_option("--hosts-file", hosts_file, "The allocation, a name or hostlist a line");
  app.add_option("--job", job_file, "The job's layout and traffic, TOML (docs/planning.md)");
  app.add_option(
      "--layout", job.layout,
      "Its axes, tp=8,pp=8,dp=192[,nesting=tp-cp-ep-dp-pp] or tp8,pp8,dp192; goes before --job");
  app.add_option(
      "--model", job.model,
      "The model that traffic is derived from: gpt-13b, gpt-175b, gpt-530b, gpt2-124m or "
      "llama-160m, then keys of [model], as gpt-175b,zero=1");
  app.add_option("--traffic", job.traffic,
                 "Traffic as such: name=gradients,axes=dp,collective=all_reduce,bytes=1GB; "
                 "repeatable");
  app.add_option("--node", job.node, "Keys of [node]: gpus=8,nvlink=450GB/s,queue_pairs=4");
  app.add_option("--balance", balance,
                 "How flows find their cables: hashed (ECMP), planned (source ports chosen by the "
                 "path planner) or even (sprayed)");
  app.add_option("--seed", seed, "Seed of random orders and of local search");
  app.add_flag(
      "--regroup", regroup,
      "Let the planner choose which ranks share a host (default: consecutive ranks share one)");
  app.add_option("--effort", effort, "Work of the search, relative to the default")
      ->check(RealRange(0.001, 1000));
  app.add_option("--json", json, "Write the results into this file; -: print them, and no tables");
}

std::string Input::Describe() const {
  int gpus = topology::GpusOf(job, *fabric, hosts);
  return absl::StrCat(job.mesh.Describe(), " on ", hosts.size(), " of ", fabric->hosts().size(),
                      " hosts, ", gpus, gpus == 1 ? " GPU" : " GPUs", " each");
}

absl::Status CheckOutputBeside(const std::string& out, const std::string& file) {
  absl::Status status = CheckOutput(file);
  if (out.empty() || !absl::IsNotFound(status)) return status;
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path folder = fs::absolute(file, error).lexically_normal().parent_path();
  const fs::path way = fs::absolute(out, error).lexically_normal().lexically_relative(folder);
  const bool is_made = way.empty() || *way.begin() != "..";  // `folder` is `out`, or above it
  return is_made ? absl::OkStatus() : status;
}

absl::StatusOr<Input> LoadInput(const InputWords& words, const std::string& out) {
  WEFT_RETURN_IF_ERROR(CheckOutputBeside(out, words.json));
  Input input;
  WEFT_ASSIGN_OR_RETURN(input.job, topology::LoadJob(words.job_file, words.job));
  WEFT_ASSIGN_OR_RETURN(topology::Fabric fabric, topology::LoadFabric(words.fabric));
  input.fabric = std::make_unique<topology::Fabric>(std::move(fabric));
  if (!words.hosts.empty() && !words.hosts_file.empty()) {
    return absl::InvalidArgumentError("--hosts and --hosts-file exclude each other");
  }
  if (words.hosts.empty() && words.hosts_file.empty()) {
    input.hosts.assign(input.fabric->hosts().begin(), input.fabric->hosts().end());
  } else {
    std::vector<std::string> names;
    if (!words.hosts.empty()) {
      WEFT_ASSIGN_OR_RETURN(names, topology::ExpandHostlist(words.hosts));
    } else {
      WEFT_ASSIGN_OR_RETURN(names, topology::ReadHostFile(words.hosts_file));
    }
    WEFT_ASSIGN_OR_RETURN(input.hosts, topology::FindHosts(*input.fabric, names));
  }
  input.tree = std::make_unique<topology::CutTree>(*input.fabric);
  WEFT_ASSIGN_OR_RETURN(input.options.balance, topology::ParseBalance(words.balance));
  input.options.seed = words.seed;
  input.options.regroup = words.regroup;
  input.options.effort =
      static_cast<int64_t>(static_cast<double>(topology::OrderOptions().effort) * words.effort);
  input.tables = words.json != "-";
  return input;
}

absl::StatusOr<Placed> Place(const Input& input, const RankOrder& order) {
  if (order.world() != input.job.mesh.ranks()) {
    return absl::InvalidArgumentError(
        absl::StrCat("the order has ", order.world(), " ranks, the job ", input.job.mesh.ranks()));
  }
  WEFT_ASSIGN_OR_RETURN(CostModel model, CostModel::Create(*input.tree, input.job, order.blocks,
                                                           input.hosts, input.options.balance));
  WEFT_ASSIGN_OR_RETURN(Placement placement, topology::PlacementOf(model, order));
  return Placed{std::move(model), std::move(placement)};
}

namespace {

absl::StatusOr<Candidate> Planned(const Input& input) {
  SystemClock clock;
  absl::Time begin = clock.Now();
  Progress progress("weft-plan", input.tables);
  topology::OrderOptions options = input.options;
  options.progress = [&](const std::string& stage, double share) {
    progress.Show(stage, share);
    return true;
  };
  WEFT_ASSIGN_OR_RETURN(topology::PlannedOrder planned,
                        topology::PlanOrder(*input.tree, input.job, input.hosts, options));
  progress.End();
  Candidate candidate;
  candidate.name = "planned";
  candidate.order = std::move(planned.order);
  candidate.cost = std::move(planned.cost);
  candidate.bound = std::move(planned.bound);
  candidate.how = std::move(planned.how);
  candidate.seconds = absl::ToDoubleSeconds(clock.Now() - begin);
  return candidate;
}

absl::StatusOr<RankOrder> ReadOrder(const Input& input, const std::string& path) {
  absl::StatusOr<std::string> text = ReadFile(path);
  if (absl::IsNotFound(text.status())) {
    return absl::NotFoundError(absl::StrCat(
        "'", path, "' is neither a rank file nor one of planned, as-allocated, random, block"));
  }
  if (!text.ok()) return text.status();
  WEFT_ASSIGN_OR_RETURN(topology::RankTable table, topology::ParseRankFile(*text, path));
  absl::StatusOr<RankOrder> order = topology::OrderFromTable(table, *input.fabric);
  if (!order.ok()) return Annotate(order.status(), path);
  return order;
}

}  // namespace

absl::StatusOr<Candidate> MakeCandidate(const Input& input, const std::string& name) {
  if (name == "planned") return Planned(input);
  Candidate candidate;
  candidate.name = name;
  Placement placement;
  if (name == "as-allocated") {
    placement = topology::AsAllocated(input.hosts.size());
  } else if (name == "random") {
    placement = topology::RandomPlacement(input.hosts.size(), input.options.seed);
  } else if (name == "block") {
    placement = topology::BlockPlacement(*input.tree, input.hosts);
  } else {
    WEFT_ASSIGN_OR_RETURN(candidate.order, ReadOrder(input, name));
    WEFT_ASSIGN_OR_RETURN(Placed placed, Place(input, candidate.order));
    candidate.cost = placed.model.Evaluate(placed.placement);
    candidate.bound = topology::LowerBound(placed.model);
    return candidate;
  }
  WEFT_ASSIGN_OR_RETURN(topology::RankBlocks blocks,
                        topology::DefaultBlocks(input.job, *input.fabric, input.hosts));
  WEFT_ASSIGN_OR_RETURN(CostModel model,
                        CostModel::Create(*input.tree, input.job, std::move(blocks), input.hosts,
                                          input.options.balance));
  candidate.order = topology::OrderOf(model, placement);
  candidate.cost = model.Evaluate(placement);
  candidate.bound = topology::LowerBound(model);
  return candidate;
}

}  // namespace weft::plan
