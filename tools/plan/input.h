// What every subcommand of weft-plan begins with: a fabric, the hosts of a job on it, the job, and
// orders of its ranks to look at.
#ifndef WEFT_TOOLS_PLAN_INPUT_H_
#define WEFT_TOOLS_PLAN_INPUT_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "topology/cost/cost_model.h"
#include "topology/cost/cut_tree.h"
#include "topology/cost/job_file.h"
#include "topology/fabric/fabric.h"
#include "topology/order/order_planner.h"

namespace weft::plan {

// Words of the command line that all subcommands share.
struct InputWords {
  std::string fabric, hosts, hosts_file, job_file;
  topology::JobWords job;
  std::string balance = "hashed";
  uint64_t seed = 1;
  bool regroup = false;
  double effort = 1;
  std::string json;  // a file; "-": standard output, and no tables

  void Declare(CLI::App& app);
};

struct Input {
  std::unique_ptr<topology::Fabric> fabric;
  std::unique_ptr<topology::CutTree> tree;
  topology::Job job;
  std::vector<NodeId> hosts;
  topology::OrderOptions options;
  bool tables = true;

  // "tensor 8 x data 192 x pipeline 8 on 1536 of 1536 hosts, 8 GPUs each".
  std::string Describe() const;
};

// `out`: as below, of words.json.
absl::StatusOr<Input> LoadInput(const InputWords& words, const std::string& out = "");
// As CheckOutput(), for a command that makes the folder `out` (empty: none) before it writes
// `file`, which may lie there.
absl::Status CheckOutputBeside(const std::string& out, const std::string& file);

// An order with its predicted cost.
struct Candidate {
  std::string name;
  topology::RankOrder order;
  topology::StepCost cost;
  // What a planned order has besides.
  topology::StepCost bound;
  std::string how;
  double seconds = 0;  // that planning took
};

// `name`: "planned", "as-allocated", "random", "block", or a rank file.
absl::StatusOr<Candidate> MakeCandidate(const Input& input, const std::string& name);
// The model of the order's own blocks, and its placement there.
struct Placed {
  topology::CostModel model;
  topology::Placement placement;
};
absl::StatusOr<Placed> Place(const Input& input, const topology::RankOrder& order);

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_INPUT_H_
