// The state of a job that weft-run and weft-driver decide by (decisions.h): its places for hosts,
// the hosts, and the ranks. It says what ought to run, not what to do.
//
// A job has `nodes` places for hosts, each with as many ranks; a host without a place is a spare.
//
// Plain data and pure functions: no I/O, no clock. Times are by the clock of whoever decides.
#ifndef WEFT_TOOLS_RECOVERY_JOB_STATE_H_
#define WEFT_TOOLS_RECOVERY_JOB_STATE_H_

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "tools/recovery/replay.h"

namespace weft::recovery {

struct Policy {
  int nodes = 1;
  int ranks_per_node = 1;
  int restarts_most = 0;   // of ranks that ended, in all
  bool self_tests = true;  // whether there is somebody who tests hosts
  int replay_hosts = 0;    // in a group of a replay; 0: there are no replays
  // Before a rank that ends soon after its start, without a new step, is started a third time; from
  // there twice as long each time, up to the most.
  absl::Duration backoff_first = absl::Milliseconds(500);
  absl::Duration backoff_most = absl::Seconds(15);
  // From the loss of a node's host until the job stops for want of another one.
  absl::Duration vacancy_most = absl::Minutes(5);
  // Where these ranks are a part of a job's: what each is there, [rank]. Empty: the same.
  std::vector<int> numbers;
};

struct HostState {
  int64_t incarnation = 0;  // of its executor; a higher one has taken a lower one's place
  std::string address;      // where its ranks are reached
  std::string rack;         // of its switch, "spine1.leaf3" from the top; empty: not known
  int node = -1;            // -1: a spare
  bool evicted = false;
  std::string reason;                     // of the eviction
  int64_t test = 0;                       // the number of the self-test that is awaited; 0: none
  std::vector<std::string> test_helpers;  // hosts that run its last part with it
  bool cleared = false;  // it passed a test after a device fault, or could not be tested
  int own_signals = 0;   // deaths by a signal of the program's own doing since the last test
  // When a diagnosis blamed it last; the epoch: none did since it last passed a test.
  absl::Time blamed;
  bool operator==(const HostState&) const = default;
};

struct NodeState {
  std::string host;  // empty: none
  absl::Time vacant_since;
  std::string rack;  // without a host: that of the last one, near which its ranks' peers are
  bool operator==(const NodeState&) const = default;
};

struct RankState {
  int generation = 0;
  bool runs = false;       // or ought to
  bool done = false;       // ended with status 0
  std::string last_end;    // as collectives::ToText writes it; empty: it has not ended
  int64_t last_step = -1;  // done when it ended; -1: not known
  absl::Time started;      // when that was decided last
  int diagnosed = -1;      // the generation that a diagnosis was acted on in last; -1: none
  int soon_ends = 0;       // in a row that came soon after the start, without a new step
  absl::Time due;          // when it is started anew; the epoch: no start is awaited
  bool operator==(const RankState&) const = default;
};

// A host that has left the job, of which the site is still to be told.
struct Notice {
  int64_t number = 0;  // counts the notices of a job; names this one
  std::string host;
  std::string why;
  bool operator==(const Notice&) const = default;
};

// All ranks are suspended meanwhile.
struct Replay {
  std::string why;
  int phase = 0;
  int64_t task = 0;                 // the number of the phase, of all that there have been
  std::vector<ReplayGroup> groups;  // of all phases so far
  // What the job stops with where no host is named; 0: it goes on.
  int stop_status = 0;
  bool operator==(const Replay&) const = default;
};

// EX_TEMPFAIL of sysexits.h: the same job may run where there are hosts.
inline constexpr int kNoHostsStatus = 75;

struct Outcome {
  int exit_status = 0;
  std::string reason;
  absl::Time time;
  bool operator==(const Outcome&) const = default;
};

struct JobState {
  int64_t decisions = 0;  // made so far
  bool started = false;   // all nodes have had a host at once
  int restarts = 0;       // of ranks that ended
  int64_t tests = 0;      // self-tests asked for so far
  int64_t replays = 0;    // phases of replays asked for so far
  std::optional<Replay> replay;
  std::map<std::string, HostState> hosts;
  std::vector<NodeState> nodes;
  std::vector<RankState> ranks;
  int64_t notices_made = 0;
  std::vector<Notice> notices;     // oldest first; each stays until the site has been told
  std::optional<Outcome> outcome;  // the job is over
  bool operator==(const JobState&) const = default;
};

// The state of a job that nobody has joined yet.
JobState NewJob(const Policy& policy, absl::Time now);

// For a driver that goes on with the state of another one, whose clock may have shown another
// time, and after a while in which nobody decided: from `now` on, a node without a host has all its
// time to get one, as hosts may have come meanwhile; no start is awaited for longer than its pause,
// and nothing has happened in the future.
void GoOn(const Policy& policy, JobState& state, absl::Time now);

// Whether the rank is started anew after a pause (RankState::due).
inline bool Waits(const RankState& rank) { return rank.due != absl::UnixEpoch(); }

// When the next rank is due that is started after a pause: then Decide() has to be called. Infinite
// future: none is.
absl::Time NextStart(const JobState& state);

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_JOB_STATE_H_
