// `weft-plan collective`: which algorithm a collective takes on a group of ranks, what the others
// would cost, and a picture of both over sizes, on one fabric or several. The answer is that of the
// communicators themselves: the same planner, costs and settings. With --simulate, what a fabric
// makes of each plan besides.
#ifndef WEFT_TOOLS_PLAN_COLLECTIVE_COMMAND_H_
#define WEFT_TOOLS_PLAN_COLLECTIVE_COMMAND_H_

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "collectives/group_place.h"
#include "tools/plan/collective_answer.h"
#include "tools/plan/collective_group.h"

namespace weft::plan {

class CollectiveCommand {
 public:
  explicit CollectiveCommand(CLI::App& app);
  bool chosen() const { return command_->parsed(); }
  absl::Status Run() const;

 private:
  // Sets where the ranks of `group` are: on the hosts of a fabric, or of none.
  absl::StatusOr<std::vector<collectives::RankPlace>> Place(const std::string& fabric,
                                                            CollectiveGroup& group) const;
  // `follows`: after another group.
  void Print(const CollectiveGroup& group, const std::vector<CollectiveAnswer>& answers,
             bool follows) const;

  CLI::App* command_;
  std::string kind_, sizes_ = "1KiB..256MiB", type_ = "float", group_ = "world";
  std::vector<std::string> size_;
  std::vector<std::string> fabrics_;
  std::string mesh_, hosts_, transport_, json_, svg_, simulate_, balance_ = "spray";
  std::vector<std::string> settings_;
  int64_t steps_most_ = 4'000'000;
  int ranks_per_host_ = 0, root_ = 0, cores_ = 0, count_ = 5;
  bool nccl_ = false;
};

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_COLLECTIVE_COMMAND_H_
