// The flows of a run: which rank sends to which.
#ifndef WEFT_TOOLS_BW_LINK_FLOWS_H_
#define WEFT_TOOLS_BW_LINK_FLOWS_H_

#include <vector>

#include "absl/status/statusor.h"
#include "tools/bw/link/options.h"

namespace weft::link_bw {

struct Flow {
  int from = 0, to = 0;
  bool operator==(const Flow&) const = default;
};

// The flows of a load's pattern among `ranks`, or what does not fit.
absl::StatusOr<std::vector<Flow>> FlowsOf(const Load& load, int ranks);

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_FLOWS_H_
