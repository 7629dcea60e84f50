// Names what is wrong with a job: pure functions of its view, the same for a live job and a
// recorded one.
//
// Two questions. Does it stand still? Then the graph of who waits for whom is followed from those
// who wait to the one who waits for nobody: the culprit; whoever waits is a victim. (Mycroft, arXiv
// 2509.03018, table 4, gives the rules for the flows inside a collective in which everybody is.)
// Is it slow? Then the time that a rank spends in its own phases, without waiting, is compared with
// the other ranks', step by step, and must stand out for several steps in a row (Minder's
// continuity, arXiv 2411.01791). What fits no rule is kUnknown, with the evidence.
#ifndef WEFT_TOOLS_OBSERVE_DIAGNOSE_H_
#define WEFT_TOOLS_OBSERVE_DIAGNOSE_H_

#include <memory>
#include <string>
#include <vector>

#include "tools/observe/job_view.h"

namespace weft::observe {

enum class Fault {
  kDeadRank,            // its process is gone
  kLeftEarly,           // it ended in good order while others wait for it
  kStoppedRank,         // its process is stopped (SIGSTOP, a debugger)
  kDifferentCalls,      // ranks mean different things by one call
  kDeadlock,            // ranks wait for each other in a circle
  kHangOutside,         // it is outside of all calls and does not come
  kReceiverNotPosting,  // its communication does not move, or it does not post
  kStuckFlow,           // bytes left one rank and do not reach another
  kSlowRank,            // its own phases take longer than the others'
  kSlowData,            // likewise, and it is the data that it waits for
  kSlowFlow,            // one link is slower than its siblings
  kNotFinite,           // its loss or gradients
  kDeviceError,         // its XID, or memory errors that cannot be corrected
  kHostError,           // the kernel reports memory, processor, disk or NIC of its host
  kOutOfMemory,         // the kernel ended it
  kNicDown,             // a port of it is down
  kLinkFlaps,           // a port went down and came back more than once
  kReconnected,         // queue pairs failed and were made anew
  kBrokenPath,          // nothing gets through between two ranks, either way
  kSlowNic,             // all flows of one rank, both ways
  kCongestion,          // others use the links; nobody is at fault
  kLossyLink,           // one flow repeats far more than its siblings
  kReordering,          // packets come out of order, and none is lost
  kCorruptingLink,      // packets fail their checksum and are sent again
  kCorruptData,         // past the link's checksum, found end to end
  kDifferentSettings,   // of what all ranks must have alike
  kLateThread,          // again and again
  kLivelock,            // it goes on, but its step does not
  kStoppedHost,         // all its ranks are stopped, others' are not
  kRepeatedError,       // the same one, without a step between
  kReplicaDiffers,      // finite, but not what its peers have
  kLossSpike,           // of one rank's batch
  kSaveFailed,          // of a checkpoint
  kBadShard,            // of a checkpoint that was loaded
  kSlowStorage,         // its checkpoints take longer than its peers'
  kControlPlane,        // the store or coordinator did not answer
  kStaleRank,           // it is of an earlier membership of the job
  kObserverDegraded,    // metrics are lost; training is not touched
  kUnknown,
};
const char* ToString(Fault fault);  // "dead rank", ...

enum class Component {
  kProgram,
  kProcess,
  kHost,
  kCpu,
  kMemory,
  kDevice,
  kData,
  kStorage,
  kNic,
  kNetwork,  // a link or a path
  kUnknown,
};
const char* ToString(Component component);

struct Finding {
  Fault fault = Fault::kUnknown;
  Component component = Component::kUnknown;
  std::vector<int> culprits;          // ranks; of a flow: sender, receiver
  bool each_is_culprit = false;       // of several, by what is known of each now
  std::vector<int> victims;           // who waits
  int64_t since_ns = 0;               // when it began, as far as the records tell
  std::vector<std::string> evidence;  // sentences
  std::vector<std::string> rejected;  // what it is not, and why
  std::string advice;
};

struct DiagnoseOptions {
  // A job stands still after so long without any end of a call, phase or step; and three of its own
  // steps.
  int64_t still_ns = 1'000'000'000;
  // A slow rank takes this many times the ranks' median, in so many steps in a row.
  double slow_ratio = 1.1;
  int slow_steps = 3;
  // A slow link carries less than this part of its siblings' median.
  double slow_flow_ratio = 0.5;
};

// Most certain first; empty: nothing is wrong.
std::vector<Finding> Diagnose(const JobView& view, const DiagnoseOptions& options = {});

// What the ranks that are blocked wait for; for Diagnose and its tests.
struct WaitsFor {
  int rank = 0;
  const Call* call = nullptr;
  // That have not called it, or are the message's other end; one list for all that wait in a call.
  std::shared_ptr<const std::vector<int>> ranks;
  bool IsFor(int other) const;
};
std::vector<WaitsFor> WaitGraph(const JobView& view);

std::string ToText(const Finding& finding);  // several lines, for people
std::string ToJson(const JobView& view, const std::vector<Finding>& findings);

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_DIAGNOSE_H_
