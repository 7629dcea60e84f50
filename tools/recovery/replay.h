// Dual-phase replay: finds a host that computes wrongly without any sign of it. The job is
// suspended, and its hosts replay the same step twice in groups of the same size, each group a job
// of its own with the same ranks, data and state, so that all healthy groups come to the same
// result to the bit. In the second phase no two hosts of a group meet again (where there are at
// least as many groups as hosts in a group), so that a host that computes wrongly is the one that
// the wrong groups of both phases have in common.
//
// After ByteRobust (SOSP'25, arXiv 2509.16293), dual-phase replay: its groups keep tensor and
// pipeline parallelism and vary the data-parallel replicas. Departures: a group's result is a
// digest and not only whether it failed, so that flips that let the loss stay finite are seen; and
// hosts that are left over fill a last group together with hosts that have a group already.
//
// Pure functions.
#ifndef WEFT_TOOLS_RECOVERY_REPLAY_H_
#define WEFT_TOOLS_RECOVERY_REPLAY_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace weft::recovery {

inline constexpr int kReplayPhases = 2;

struct ReplayGroup {
  int phase = 0;
  std::vector<std::string> hosts;  // [process group], the first has rank 0
  // What its hosts have reported: a digest; empty: it failed there. A host that is missing has not
  // reported yet, or is lost.
  std::map<std::string, std::string> results;
  bool operator==(const ReplayGroup&) const = default;
};

// The groups of one phase: `size` hosts each, every host in at least one. Empty: there are fewer
// than two groups' hosts.
std::vector<ReplayGroup> ReplayGroups(const std::vector<std::string>& hosts, int size, int phase);

struct ReplayVerdict {
  std::vector<std::string> named;  // hosts without any right group, though they had one each phase
  std::string text;                // for people
};

// Right is the result that most groups of both phases have, two at least and more than any other; a
// group that failed, or whose hosts have different results, is wrong; one with a lost host says
// nothing.
ReplayVerdict JudgeReplay(const std::vector<ReplayGroup>& groups);

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_REPLAY_H_
