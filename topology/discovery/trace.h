// By which routers flows from here to one target go, asked of the network: by recorded routes where
// routers record them (echo_prober.h), else by the errors that come back when the time to live runs
// out (udp_prober.h). Every wait and every retry is bounded.
#ifndef WEFT_TOPOLOGY_DISCOVERY_TRACE_H_
#define WEFT_TOPOLOGY_DISCOVERY_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "topology/ecmp/five_tuple.h"

namespace weft::topology {

struct TraceOptions {
  IpAddress source, target;
  uint16_t target_port = kRoceTargetPort;
  absl::Duration timeout = absl::Milliseconds(200);  // of one answer
  int rounds = 4;                                    // of questions that stay without answer
  // Flows of one recorded route that are also asked for what answers there; names of both kinds are
  // of one router.
  int named_flows = 1;
  // Asks no further when a good part of the flows has told nothing: a switch is silent.
  bool gives_up = false;
};

struct TracedFlow {
  uint16_t source_port = 0;
  // [position] names of routers, all or none.
  std::vector<std::string> recorded;
  std::vector<std::string> answered;  // "": nothing answers there
};

struct TraceStatistics {
  int64_t sent = 0, lost = 0;
};

struct Reached {
  bool heard = false;
  int routers = 0;
  absl::Duration rtt;  // the shortest of all
};

// How far the target is; an EchoServer answers there.
absl::StatusOr<Reached> Reach(const TraceOptions& options, absl::Span<const uint16_t> ports,
                              TraceStatistics& statistics);

// Flows over `routers` routers; those of which nothing is known are left out.
absl::StatusOr<std::vector<TracedFlow>> TraceFlows(const TraceOptions& options, int routers,
                                                   absl::Span<const uint16_t> ports,
                                                   TraceStatistics& statistics);

// What answers at one position, counted from 1, in `rounds` tries; "": nothing.
absl::StatusOr<std::string> NameAt(const TraceOptions& options, uint16_t source_port, int position,
                                   TraceStatistics& statistics);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_TRACE_H_
