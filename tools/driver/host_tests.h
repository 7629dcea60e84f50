// The parts of a host's self-test (self_test.h): what weft-doctor and weft-bw do, as calls.
//
// A status that is not OK names the part that failed and why. kDeadlineExceeded of TestGroup():
// another process of the group did not come, which says nothing of this host; what takes too long
// once all have come has another code.
#ifndef WEFT_TOOLS_DRIVER_HOST_TESTS_H_
#define WEFT_TOOLS_DRIVER_HOST_TESTS_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/settings.h"

namespace weft::driver {

// What the host's devices, drivers, links and libraries say of themselves: an error of weft-doctor
// fails. Takes some seconds at most.
absl::Status TestHost();

// Runs TestGroup() in `processes` processes of this program ("--self-test-part group") on this
// host, as weft-run would. To be called once, in the program's first thread, before there are
// others. The exit status is 0 where all passed; the processes write why not.
absl::StatusOr<int> TestWithinHost(int processes);

// Every process of the environment's job calls it: bytes from each to each other over the
// transport, both ways, each compared (loopback within a host, NIC pairs between hosts), and over
// each RDMA device where the transport is left to us (link_tests.h); then an all-to-all and an
// all-reduce, with each element compared. Meets the others within `patience`, and takes some
// seconds. Returns what was tested.
absl::StatusOr<std::string> TestGroup(absl::Duration patience);

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_HOST_TESTS_H_
