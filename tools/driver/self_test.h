// A host tests itself when it is suspected: programs that end with a status other than 0 when
// something is wrong, one after the other, all together within a bound of time.
//
//   host    what the host's devices, drivers and links say of themselves (weft-doctor's checks)
//   links   processes of this host: bytes over the transport both ways between each two, an
//           all-to-all and an all-reduce (weft-bw's), all compared
//   pairs   the same with each of the hosts near it that help, one after the other, in a job of
//           two of the environment's (WEFT_STORE, RANK) whose name has the helper's number behind;
//           fails where it fails, or hangs, with all that come, since one of them may be the one
//           that is bad
//
// (host_tests.h), each a process of this program, so that one that hangs or crashes is ended. A
// site's own commands take the place of the first two.
#ifndef WEFT_TOOLS_DRIVER_SELF_TEST_H_
#define WEFT_TOOLS_DRIVER_SELF_TEST_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace weft::driver {

struct SelfTestOptions {
  absl::Duration limit = absl::Seconds(30);  // for all together
  std::vector<std::string> commands;         // of a shell; empty: parts "host" and "links"
  int helpers = 0;                           // hosts that help
};

// What a part writes before why it failed.
inline constexpr char kSelfTestSays[] = "weft-executor: self-test: ";
inline constexpr int kNobodyCame = 3;  // exit status of a pair

// What both processes of a pair run, in the job of the environment. `patience`: for the other one.
std::vector<std::string> PairCommand(int helper, absl::Duration patience);

struct SelfTestResult {
  bool passed = false;
  std::string text;  // what failed first, and its last line; or that all passed
};

// Runs the test in this process, which the executor starts beside its ranks (weft-executor
// --self-test); it reaps children.
SelfTestResult RunSelfTest(const SelfTestOptions& options);

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_SELF_TEST_H_
