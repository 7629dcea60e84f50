// Detectors of the literature as pure functions of records, each for itself: what Diagnose (all
// rules together) adds can be measured against them, and `weft-diagnose --detector` runs one alone.
//
// Minder (arXiv 2411.01791, section 4): a metric at a time, windows of all ranks are denoised by an
// autoencoder, the sum of a rank's distances to the others' windows tells the outlier, and the same
// rank must stay it for several windows. Departs: the autoencoder is linear (the windows' two
// principal components, of these windows themselves) and no LSTM-VAE; metrics are the seconds of
// each phase of a step, in the order of their largest Z-score, not of a learned tree.
//
// Greyhound (ATC'25, section 5): Bayesian online change-point detection (Adams and MacKay 2007,
// with a normal-inverse-gamma prior) of a rank's own time a step, and a check that it rose by
// a tenth; a rank is blamed whose peers have no such change. Departs: a step is known from the
// records and not looked for by autocorrelation.
//
// Mycroft (arXiv 2509.03018, section 5 and table 4): of a job that stands still, the rank with the
// least operations in a group; where all have the same, the flow with the least data, and whom its
// counters blame.
#ifndef WEFT_TOOLS_OBSERVE_DETECTORS_H_
#define WEFT_TOOLS_OBSERVE_DETECTORS_H_

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "tools/observe/diagnose.h"

namespace weft::observe {

// One metric's values by rank, one a step; all ranks have as many.
using MetricSeries = std::map<int, std::vector<double>>;

struct MinderOptions {
  size_t window = 4, components = 2;
  size_t continuity = 3;   // windows in a row
  bool denoise = true;     // false: the windows as they are, for comparison
  double distance = 0.25;  // of the metric's range: the least that an outlier is away from others
  double times = 2;        // and so many times the median rank's distance
};
// The rank that stands out for the last `continuity` windows and more; none: nobody does.
std::optional<int> MinderOutlier(const MetricSeries& series, const MinderOptions& options = {});

struct ChangePoint {
  size_t at = 0;                 // the first value after the change
  double before = 0, after = 0;  // medians: a single long value is no change
  double shift() const { return before > 0 ? after / before - 1 : 0; }
};
// The last change of the mean that is certain (run lengths about it have 0.9 of the posterior);
// none: there was no change. Values before the first change are at least 3, after it, too.
std::optional<ChangePoint> LastChange(absl::Span<const double> values);

// Mycroft's table 4, in bytes: G is ready to be sent, T left, D arrived.
struct FlowProgress {
  uint64_t ready = 0, transmitted = 0, done = 0;
};
enum class FlowBlame {
  kNotStarted,   // G = T = D = 0: this rank's program, or the one that it waits for
  kLocalOrPeer,  // G > T: this NIC, or the receiver is not ready
  kNetwork,      // T > D: the path, or the receiver failed
  kDevice,       // G = T = D > 0: this rank's device or host does not bring more
  kReceiver,     // the sender says T > D, the receiver G = T = D: the receiver
};
FlowBlame BlameOf(const FlowProgress& sender, const std::optional<FlowProgress>& receiver);

enum class Detector { kAll, kMinder, kGreyhound, kMycroft };
// `name`: "all", "minder", "greyhound", "mycroft".
std::optional<Detector> DetectorNamed(absl::string_view name);
// What that detector alone says; a slow rank, or for Mycroft a hang or a flow.
std::vector<Finding> Detect(Detector detector, const JobView& view,
                            const DiagnoseOptions& options = {});

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_DETECTORS_H_
