// A host tests itself when it is suspected: programs that end with a status other than 0 when
// something is wrong, one after the other, all together within a bound of time.
//
//   weft-doctor                    what the host's devices, drivers and links say of themselves
//   weft-bw link --ranks 2 -V      bytes through the transport, both ends here, each compared
//
// or whatever commands a site has.
#ifndef WEFT_TOOLS_DRIVER_SELF_TEST_H_
#define WEFT_TOOLS_DRIVER_SELF_TEST_H_

#include <string>
#include <vector>

#include "absl/time/time.h"

namespace weft::driver {

struct SelfTestOptions {
  absl::Duration limit = absl::Seconds(20);  // for all together
  std::vector<std::string> commands;         // of a shell; empty: those above
};

struct SelfTestResult {
  bool passed = false;
  std::string text;  // what failed first, and its last line; or that all passed
};

// Runs the test in this process, which the executor starts beside its ranks (weft-executor
// --self-test); it reaps children.
SelfTestResult RunSelfTest(const SelfTestOptions& options);

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_SELF_TEST_H_
