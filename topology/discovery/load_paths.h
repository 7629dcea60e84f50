// Which paths flows take where no switch says so: one flow at a time is loaded until its path is
// full, and flows whose round trips rise share a link with it. Loads towards one leaf, probed from
// all other leaves: what they share is the link from a spine to that leaf, so that flows of all
// leaves that rise together pass one spine.
//
// A load tells by luck which path it fills. Steps with mostly the same risen flows are of one path;
// a path is believed once two loads have shown it. Round trips on a busy host may lie: steps that
// the paths do not explain are counted.
#ifndef WEFT_TOPOLOGY_DISCOVERY_LOAD_PATHS_H_
#define WEFT_TOPOLOGY_DISCOVERY_LOAD_PATHS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"

namespace weft::topology {

// Whether one flow's round trip has risen under a load.
enum class Risen : int8_t { kUnknown = -1, kNo = 0, kYes = 1 };

// Which of `trips` have risen, by the widest gap between them, where that is as wide as a full
// queue makes it: a few dozen packets at least, at the rate `got` by which the path empties it.
// `idle`: the median without load. Infinite: lost.
std::vector<Risen> FindRisen(absl::Duration idle, Bandwidth got,
                             absl::Span<const absl::Duration> trips);

struct LoadStep {
  Bandwidth got;             // that arrived: the path's, once it is full
  std::vector<Risen> risen;  // by flow
};

struct LoadPaths {
  std::vector<int> path_of;          // by flow; -1: not known yet
  std::vector<Bandwidth> bandwidth;  // by path, the median of its steps
  int misfits = 0;                   // steps that these paths do not explain
  int steps = 0;
  // Every flow has a path, by loads enough that one path more would have been met.
  bool IsWhole() const;
};

// What the steps so far tell.
LoadPaths FindLoadPaths(size_t flows, absl::Span<const LoadStep> steps);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_DISCOVERY_LOAD_PATHS_H_
