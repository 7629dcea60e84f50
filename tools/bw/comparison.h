// weft-bw --compare: every algorithm that the planner could have taken for a case, each forced in a
// group of its own over the same ranks, buffers and links, so that their repeats can be timed in
// turns in the same processes.
#ifndef WEFT_TOOLS_BW_COMPARISON_H_
#define WEFT_TOOLS_BW_COMPARISON_H_

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/settings.h"
#include "collectives/communicator.h"
#include "collectives/endpoint.h"
#include "collectives/planner/planner.h"
#include "tools/bw/operation.h"
#include "tools/job/job.h"

namespace weft::bw {

// The call of rank 0 in a group of all ranks; its operation is a collective.
collectives::CollectiveSpec SpecFor(const Case& what, const collectives::Endpoint& endpoint);
// What the planner takes for it in the group "world". InvalidArgument: the settings' rules.
absl::StatusOr<collectives::planner::Plan> ChoiceFor(const Case& what,
                                                     const collectives::Endpoint& endpoint);

class Comparison {
 public:
  // Adds the rules that force an algorithm in its group; before the endpoint is made.
  static absl::Status AddRules(Settings& settings);
  static absl::StatusOr<Comparison> Create(job::Joined& job);

  struct Candidate {
    std::string algorithm;
    collectives::Communicator* communicator;
    bool chosen;  // by the planner
  };
  // The candidates of a case, the cheapest by the planner's prediction first; none: no collective.
  absl::StatusOr<std::vector<Candidate>> For(const Case& what) const;

 private:
  std::shared_ptr<collectives::Endpoint> endpoint_;
  std::map<std::string, std::unique_ptr<collectives::Communicator>> groups_;  // by algorithm
};

}  // namespace weft::bw

#endif  // WEFT_TOOLS_BW_COMPARISON_H_
