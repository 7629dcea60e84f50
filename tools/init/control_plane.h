// The control plane of a job on a simulated fabric: what weft-init does for real on one machine, as
// messages between hosts and as work at the store, in the flow level of the simulator. Hosts have a
// relay each. With `fan_out`, so many hosts stand below a relay of relays, and those below the
// root; without, all hosts stand below the root.
//
// One thread serves at the root, and one at each relay: what it has to do for each message is done
// one after the other, in the order of the hosts. What that costs is measured on this machine
// (MeasureCosts) or given; where it departs from a cluster says docs/fast-init.md.
#ifndef WEFT_TOOLS_INIT_CONTROL_PLANE_H_
#define WEFT_TOOLS_INIT_CONTROL_PLANE_H_

#include <array>
#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "tools/init/options.h"
#include "tools/init/shared.h"

namespace weft::init {

// Seconds of CPU.
struct ControlCosts {
  double connection = 0;  // at the server: accept, handshake
  double message = 0;     // at the server: a request and its reply
  double byte = 0;        // at the server: of an all-gather's reply
  double host = 0;        // a host's ranks with their relay: connect, register, exchange
  double link = 0;        // both ends of a connection between ranks, handshake included
};

// "connection=20us,message=3us,byte=0.3ns,host=2ms,link=30us"; those that are missing are 0.
absl::StatusOr<ControlCosts> ParseCosts(const std::string& text);
std::string ToText(const ControlCosts& costs);
// By a few short runs on this machine; some seconds.
absl::StatusOr<ControlCosts> MeasureCosts(const Options& options);

struct ControlPlane {
  std::string fabric;
  ControlCosts costs;
  // When the last rank is through with each phase, from the one before.
  std::array<double, kPhases> phases{};
  double total_seconds = 0;
  int64_t messages = 0;        // over the fabric
  int64_t root_messages = 0;   // of these, to and from the root
  int64_t exchange_bytes = 0;  // of records, that a host gets, on average
  double root_cpu_seconds = 0;
};
absl::StatusOr<ControlPlane> SimulateControlPlane(const Options& options,
                                                  const ControlCosts& costs);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_CONTROL_PLANE_H_
