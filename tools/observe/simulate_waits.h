// A job of thousands of ranks as its records would show it, with a known cause: for measuring how
// soon, and how rightly, Diagnose names a root cause at scales that no machine here has.
//
// Every rank runs one step of a program (receive from the stage before, reduce in its tensor group,
// send to the next stage, reduce in the data group, reduce in the world) up to where it waits for
// another; one rank, or one message, does not go on. The view is what is left when nobody can.
#ifndef WEFT_TOOLS_OBSERVE_SIMULATE_WAITS_H_
#define WEFT_TOOLS_OBSERVE_SIMULATE_WAITS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/observe/diagnose.h"

namespace weft::observe {

enum class SimulatedFault { kHang, kStuckFlow, kSlow };

struct SimulatedJob {
  JobView view;
  Fault fault = Fault::kUnknown;  // what Diagnose should say
  std::vector<int> culprits;
};

// tp8, pp8 and the rest dp. The seed draws who has the fault, and where in the step.
// kInvalidArgument: `ranks` is no multiple of 64, or more than 1,048,576.
absl::StatusOr<SimulatedJob> SimulateWaits(int ranks, SimulatedFault fault, uint64_t seed);

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_SIMULATE_WAITS_H_
