// Measures one transport between processes, as a call: what `weft-bw link` prints, for it and for
// programs that judge the links of a job before or while it runs.
//
// Every rank of the job calls MeasureLinks(), with the same number of ranks and whatever load; the
// last rank's load is taken by all, so that a server needs no options of its own. It connects links
// of its own, beside those of a running job, with memory of their own: at most 64 MiB at each end
// of a flow, or one message where that is larger.
//
// Time: meeting the others is bounded by store.timeout, connecting by the transport's own settings,
// each row by Load::duration (or its iterations) and a fifth of it as warm-up; a rank that goes or
// a link that breaks ends it on all ranks, with a status that names it. Blocks the calling thread,
// which drives the links; not thread-safe.
#ifndef WEFT_TOOLS_BW_LINK_MEASUREMENT_H_
#define WEFT_TOOLS_BW_LINK_MEASUREMENT_H_

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "base/units.h"
#include "tools/bw/link/measure.h"
#include "tools/bw/link/options.h"

namespace weft::link_bw {

// Hears of a measurement's progress, on every rank.
class MeasurementObserver {
 public:
  virtual ~MeasurementObserver() = default;
  // What all have agreed on: the load, `ranks`, and how many rows there will be. `speaks`: this
  // rank was told what to do, as the client, or is a job's rank 0. `links`: a line a link of all
  // ranks.
  virtual void OnBegin(const Load& load, int ranks, bool speaks, size_t rows,
                       const std::string& links) = 0;
  virtual void OnSize(Bytes size) = 0;  // is measured next
  virtual void OnRow(const Row& row, bool last) = 0;
};

// Meets the others as Bootstrap::Join() says. kInvalidArgument: the load does not fit the ranks.
absl::Status MeasureLinks(const Options& options, MeasurementObserver& observer);

}  // namespace weft::link_bw

#endif  // WEFT_TOOLS_BW_LINK_MEASUREMENT_H_
