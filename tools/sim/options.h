// What weft-sim is asked to do.
#ifndef WEFT_TOOLS_SIM_OPTIONS_H_
#define WEFT_TOOLS_SIM_OPTIONS_H_

#include <string>

#include "absl/status/statusor.h"
#include "topology/sim/packet/options.h"

namespace weft::sim {

enum class Level { kPacket, kFlow };

struct Options {
  std::string fabric, traffic, workload, faults, hash;
  std::string transport = "roce";
  Level level = Level::kPacket;
  std::string json, timeline, svg;
  bool quiet = false;
  topology::PacketOptions packet;  // the flow level takes its SimulationOptions
};

// As a sorted-out command line, or the exit status of a program that is done (help, wrong usage).
struct Parsed {
  Options options;
  int exit_status = -1;  // -1: go on
};
Parsed ParseCommandLine(int argc, char** argv);

// The faults of a file, in order of time:
//   AT down|up CABLES [norerouting]      "2ms down leaf0>spine1"
//   AT bandwidth CABLES RATE             "1ms bandwidth spine3 100Gbps"
// CABLES as in topology/fabric/faults.h; '#' begins a comment. Errors name file, line and reason.
absl::StatusOr<std::vector<topology::LinkFault>> ReadFaults(const std::string& path,
                                                            const topology::Fabric& fabric);

}  // namespace weft::sim

#endif  // WEFT_TOOLS_SIM_OPTIONS_H_
