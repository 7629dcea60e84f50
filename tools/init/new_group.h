// How long a new group takes over all of N real processes of one host that know each other already:
// each has an Endpoint and the communicator of the world on it.
#ifndef WEFT_TOOLS_INIT_NEW_GROUP_H_
#define WEFT_TOOLS_INIT_NEW_GROUP_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tools/init/options.h"

namespace weft::init {

// Seconds, the largest over ranks.
struct NewGroupMeasurement {
  int ranks = 0;
  double endpoint = 0;  // every process knows every other
  double world = 0;     // the world's communicator, and its first barrier, which makes links
  // Each of further groups over all ranks, ascending: until it is made, and until its first barrier
  // is over as well, so that every rank knows that every rank has it.
  std::vector<double> made;
  std::vector<double> ready;
};

absl::StatusOr<NewGroupMeasurement> MeasureNewGroup(const Options& options);

}  // namespace weft::init

#endif  // WEFT_TOOLS_INIT_NEW_GROUP_H_
