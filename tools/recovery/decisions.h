// What is done when something happens to a job: a rank ends, a host is lost, joins, leaves or fails
// its self-test, somebody evicts it. Pure functions of the job's state and an event: no I/O, no
// clock; weft-run and weft-driver decide alike.
//
//   who failed, by scope (base/failure.h)   what is done
//   request, process, unknown; a signal     the rank is started anew on its host; after the second
//                                           end in a row that came soon, with a pause that doubles
//   connection, path                        the same; no host is suspected
//   device                                  its host tests itself, with hosts near it: passed, the
//                                           rank is started anew there; failed, the host is
//                                           evicted, and a spare takes its node; the next device
//                                           fault of a host that has passed evicts it untested
//   three deaths by own signals on a host   the same
//   a rank that the diagnosis of the whole    killed, and started anew; its host tests itself; or a
//   job names: it, its host, its numbers      step is replayed
//   host lost, drained, evicted by hand     a spare host takes its node, the nearest one that is
//                                           not suspected, or the next that joins
//   the same own fault in the same step,    the job replays a step, where it can (replay.h): the
//   or twice at once without any step       host that computes wrongly is evicted; no host, and it
//                                           stops
//   a status other than 0 and 1             the job stops
//   a node without a host for too long      the job stops with kNoHostsStatus
//
// The state (job_state.h) says what ought to run, not what to do: rank r in generation g on the
// host that has its node. A driver that dies and comes back, and an executor that is told twice,
// therefore do nothing twice. An event that the state has already answered (an end of an earlier
// generation, a self-test that nobody waits for) changes nothing.
//
// What is decided is carried out on the state by rank_starts.h (starts, pauses, the job's end),
// host_places.h (places, evictions, tests) and replay_course.h; host_choice.h chooses hosts.
//
// After ByteRobust (SOSP'25), 4: isolate rather than diagnose where a spare is at hand.
#ifndef WEFT_TOOLS_RECOVERY_DECISIONS_H_
#define WEFT_TOOLS_RECOVERY_DECISIONS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "collectives/process_end.h"
#include "tools/recovery/job_change.h"
#include "tools/recovery/job_state.h"

namespace weft::recovery {

// What the diagnosis of the whole job blames (job_diagnosis.h).
enum class Blame : uint8_t {
  kRank,     // it stands still, and others wait for it
  kHost,     // a device of its host, or the host
  kNumbers,  // what it computes
};

enum class EventKind : uint8_t {
  kHostJoined,   // host, incarnation, address, rack
  kHostLost,     // host: nothing has been heard of it for its lease, or longer
  kHostLeaves,   // host: drained; it takes its leave
  kHostEvicted,  // host, text: by hand or by a scheduler
  kSelfTest,     // host, test, passed or untested, text
  kDiagnosed,    // rank, blame, text
  kReplay,       // text: by hand, or why
  kReplayed,     // host, test (the replay's task), passed, text (the digest, or why it failed)
  kRankEnded,    // rank, generation, end, step
  kStopped,      // exit_status, text: by hand
  kSiteTold,     // notice: the site has been told of it
  kTime,         // nothing but that time passes
};

struct Event {
  EventKind kind = EventKind::kTime;
  absl::Time now;
  std::string host;
  int64_t incarnation = 0;
  std::string address, rack;
  int64_t test = 0;
  int64_t notice = 0;
  bool passed = false, untested = false;
  int exit_status = 0;
  std::string text;
  int rank = -1;
  Blame blame = Blame::kRank;
  int generation = 0;
  collectives::ProcessEnd end;
  int64_t step = -1;
  // All ranks have said that what the job is for is done (collectives::Recovery::SetOver): one that
  // is started anew needs to meet nobody.
  bool over = false;
};

// Brings `state` to what the event asks for, and returns what has changed. Empty: go on.
std::vector<Action> Decide(const Policy& policy, JobState& state, const Event& event);

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_DECISIONS_H_
