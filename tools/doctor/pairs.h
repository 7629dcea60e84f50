// Between nodes: every rank sends to every other, both ways, over the transport that a job would
// use; and what the nodes say of themselves, side by side.
#ifndef WEFT_TOOLS_DOCTOR_PAIRS_H_
#define WEFT_TOOLS_DOCTOR_PAIRS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/units.h"
#include "tools/doctor/finding.h"
#include "tools/job/job.h"

namespace weft::doctor {

struct PairOptions {
  Bytes size = MiB(16);                        // of one message of the bandwidth test
  int repeats = 4;                             // messages
  absl::Duration timeout = absl::Seconds(10);  // for each direction of a pair
};

// One direction, as its sender saw it.
struct Direction {
  int from = 0, to = 0;
  std::string error;      // empty: it worked
  double latency_us = 0;  // half of the median round trip of 8 bytes
  double gbps = 0;        // Gb/s of payload
};

// Disjoint pairs at the same time, a round after another; a round in which every rank meets
// another one takes at most four times the timeout. Every rank calls it; the result is its own
// directions, as the sender. Errors of a pair are in its Direction.
absl::StatusOr<std::vector<Direction>> TestPairs(job::Joined& job, const PairOptions& options);

// Partner of a rank in round `round` of a tournament of `ranks`; -1: none. Rounds: ranks - 1, or
// ranks when that is odd.
int Opponent(int rank, int round, int ranks);

// Directions that failed, that are slow beside the others, or beside their way back. `names`: of
// the ranks, for people.
void CheckDirections(const std::vector<Direction>& directions,
                     const std::vector<std::string>& names, Findings& findings);

// What differs between nodes (NodeJson() of report.h each) and should not.
void CheckSameness(const std::vector<nlohmann::json>& nodes, Findings& findings);

// What all ranks said, put together: a part is NodeJson() with the "findings" of that host and the
// rank's "pairs".
struct JobParts {
  // By rank. DataLoss names the rank whose part is none.
  static absl::StatusOr<JobParts> Parse(const std::vector<std::string>& parts);
  // What is wrong with the hosts, each thing once with the hosts it is true of, without their
  // notes; then sameness and directions.
  Findings Judge() const;

  std::vector<std::string> names;     // of the ranks' hosts
  std::vector<nlohmann::json> nodes;  // of each host one
  std::vector<Direction> directions;  // by sender, then receiver
};

}  // namespace weft::doctor

#endif  // WEFT_TOOLS_DOCTOR_PAIRS_H_
