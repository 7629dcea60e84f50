// What one decision (decisions.h) does to a job: the actions that come of it, and the state that it
// changes.
//
// Plain data: no I/O, no clock; one thread.
#ifndef WEFT_TOOLS_RECOVERY_JOB_CHANGE_H_
#define WEFT_TOOLS_RECOVERY_JOB_CHANGE_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/recovery/job_state.h"

namespace weft::recovery {

enum class ActionKind : uint8_t {
  kPlace,   // host gets node
  kStart,   // rank in generation, on host
  kWait,    // rank is started in generation, on host, later
  kTest,    // host tests itself
  kEvict,   // host, text
  kReplay,  // text: which groups, or what came out
  kStop,    // text
};

struct Action {
  ActionKind kind = ActionKind::kStop;
  std::string host;
  int node = -1;
  int rank = -1;
  int generation = 0;
  std::string text;  // why
  bool operator==(const Action&) const = default;
};
std::string ToText(const Action& action);  // "start rank 3 (generation 2) on node1: ..."

// One decision while it is made, for the classes that make it (rank_starts.h, host_places.h,
// replay_course.h). `policy` and `state` outlive it. `node`s and `rank`s are not checked.
struct JobChange {
  const Policy& policy;
  JobState& state;
  absl::Time now;
  bool over = false;  // Event::over
  std::vector<Action> actions;

  // Null: there is none of that name.
  HostState* Find(const std::string& name) {
    const auto found = state.hosts.find(name);
    return found == state.hosts.end() ? nullptr : &found->second;
  }
  RankState& Rank(int rank) { return state.ranks[static_cast<size_t>(rank)]; }
  NodeState& Node(int node) { return state.nodes[static_cast<size_t>(node)]; }
  int NodeOf(int rank) const { return rank / policy.ranks_per_node; }
  // What the rank is in the whole job (Policy::numbers).
  int NumberOf(int rank) const {
    return policy.numbers.empty() ? rank : policy.numbers[static_cast<size_t>(rank)];
  }
  int ranks() const { return static_cast<int>(state.ranks.size()); }
};

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_JOB_CHANGE_H_
