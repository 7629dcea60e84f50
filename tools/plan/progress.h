// How far long work is, on standard error, with the time that is left: one line that is written
// over, at most five times a second, and only where somebody looks (a terminal).
#ifndef WEFT_TOOLS_PLAN_PROGRESS_H_
#define WEFT_TOOLS_PLAN_PROGRESS_H_

#include <string>

#include "absl/time/time.h"
#include "base/clock.h"

namespace weft::plan {

class Progress {
 public:
  Progress(std::string program, bool wanted);
  // A stage begins when its name is new. `share` of it is done, in [0, 1].
  void Show(const std::string& stage, double share);
  void End();  // clears the line

 private:
  std::string program_;
  bool shows_;
  SystemClock clock_;
  std::string stage_;
  absl::Time begun_, shown_;
};

}  // namespace weft::plan

#endif  // WEFT_TOOLS_PLAN_PROGRESS_H_
