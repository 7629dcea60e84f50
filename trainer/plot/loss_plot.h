// The loss of a run as a picture (SVG, no script, no font beyond the viewer's own): training loss
// as it was and smoothed, validation loss as points, and the loss of a unigram model as the line
// that a model must get under.
#ifndef WEFT_TRAINER_PLOT_LOSS_PLOT_H_
#define WEFT_TRAINER_PLOT_LOSS_PLOT_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace weft::train {

struct PlotPoint {
  double step = 0;
  double loss = 0;  // nats a token; not finite, or over 1e9: a gap
};

struct LossPlot {
  std::string title;
  std::vector<PlotPoint> train;       // by rising step; any number
  std::vector<PlotPoint> validation;  // by rising step
  std::optional<double> unigram;      // nats a token
  bool log_scale = false;             // of the loss; values below 1e-9 are then gaps
};

// Well-formed XML for every input, with at most some 2,000 points a line: of many steps the lowest
// and the highest of each group are drawn, so that no spike is lost.
std::string RenderLossSvg(const LossPlot& plot);

// Replaces `path` by a rename, so a viewer may reload it at any time.
absl::Status WriteLossSvg(const std::string& path, const LossPlot& plot);

}  // namespace weft::train

#endif  // WEFT_TRAINER_PLOT_LOSS_PLOT_H_
