// The files that a run must leave behind, and which of them could not be written: the run is over
// by then, and one that is missing is no reason to lose the others.
#ifndef WEFT_TRAINER_LOOP_REQUIRED_FILES_H_
#define WEFT_TRAINER_LOOP_REQUIRED_FILES_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "trainer/groups/agreement.h"

namespace weft::train {

// Used by one thread. All ranks make the same calls, and have the same list.
class RequiredFiles {
 public:
  explicit RequiredFiles(Agreement& world) : world_(world) {}  // outlives this object

  // Runs `write` on rank 0. Its error puts `what` and the reason on the list; one that this returns
  // is the group's.
  absl::Status Write(absl::string_view what, const std::function<absl::Status()>& write);
  // Something else that is missing, with the reason, as all ranks know.
  void AddMissing(std::string what) { missing_.push_back(std::move(what)); }

  // In the order of the calls; empty: everything is there.
  const std::vector<std::string>& missing() const { return missing_; }

 private:
  Agreement& world_;
  std::vector<std::string> missing_;
};

}  // namespace weft::train

#endif  // WEFT_TRAINER_LOOP_REQUIRED_FILES_H_
