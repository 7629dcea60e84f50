// Which transports and devices the processes of a self-test send bytes over (host_tests.h). A pure
// function.
#ifndef WEFT_TOOLS_DRIVER_LINK_TESTS_H_
#define WEFT_TOOLS_DRIVER_LINK_TESTS_H_

#include <cstddef>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft::driver {

struct LinkTest {
  std::string transport;  // as of the setting
  std::string device;     // of this process, as verbs.devices takes it; empty: as it is set
  bool operator==(const LinkTest&) const = default;
};

// `transport`: the setting. `ports`: [process] the usable RDMA ports of each, "mlx5_0:1". With
// auto, where processes of one host would take shared memory: tcp, and where all have RDMA devices
// each of these, the first with the first and so on, as they are rails. As many as the process with
// the fewest has: all processes come to the same number of tests.
std::vector<LinkTest> LinkTestsOf(absl::string_view transport,
                                  const std::vector<std::vector<std::string>>& ports, size_t self);

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_LINK_TESTS_H_
