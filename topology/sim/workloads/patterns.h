// Traffic without a program behind it: permutation, incast, full mesh, background.
//
// Each function appends to a workload, in a group of its own. Endpoints are those of the list, by
// their place in it. Random choices come from `seed` alone.
#ifndef WEFT_TOPOLOGY_SIM_WORKLOADS_PATTERNS_H_
#define WEFT_TOPOLOGY_SIM_WORKLOADS_PATTERNS_H_

#include <cstdint>

#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/random.h"
#include "base/units.h"
#include "topology/fabric/fabric.h"
#include "topology/sim/workload.h"

namespace weft::topology {

// Every endpoint sends `bytes` to the next in a random cycle through all: nobody sends to itself,
// everybody receives once. At least two endpoints.
void AddPermutation(Workload& workload, absl::Span<const Endpoint> endpoints, Bytes bytes,
                    absl::Duration start, uint64_t seed);

// `fan_in` endpoints send `bytes` to number `target`: the first others, or any others. fan_in <
// endpoints.
void AddIncast(Workload& workload, absl::Span<const Endpoint> endpoints, int fan_in, int target,
               bool random_sources, Bytes bytes, absl::Duration start, uint64_t seed);

enum class FullMeshShape {
  kParallel,  // everything at once
  kShifted,   // rank r sends to r+1, r+2, ...: `window` at a time, the next when one has ended
  kRandom,    // likewise, each in a random order of its own
};
// Every endpoint sends `bytes` to every other.
void AddFullMesh(Workload& workload, absl::Span<const Endpoint> endpoints, FullMeshShape shape,
                 int window, Bytes bytes, absl::Duration start, uint64_t seed);

struct BackgroundTraffic {
  double load = 0.1;  // of the endpoints' bandwidth `rate`, on average
  Bandwidth rate;
  Bytes bytes;               // of a transfer, on average
  bool exponential = false;  // sizes; else all alike
  absl::Duration start, duration;
};
// Transfers between random endpoints, from one Poisson process.
void AddBackground(Workload& workload, absl::Span<const Endpoint> endpoints,
                   const BackgroundTraffic& traffic, uint64_t seed);

// From the exponential distribution with mean 1, by comparisons of uniform numbers alone (von
// Neumann, 1951), so that no machine's logarithm has a say.
double ExponentialDraw(Random& random);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_SIM_WORKLOADS_PATTERNS_H_
