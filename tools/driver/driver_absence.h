// What an executor does while it does not reach its driver: it ends its ranks where the fence has
// it so (fence.h), else the ranks go on; and it says so, once in each absence.
//
// No clock, no I/O; not thread-safe.
#ifndef WEFT_TOOLS_DRIVER_DRIVER_ABSENCE_H_
#define WEFT_TOOLS_DRIVER_DRIVER_ABSENCE_H_

#include <string>
#include <utility>

#include "absl/time/time.h"
#include "tools/driver/fence.h"

namespace weft::driver {

class DriverAbsence {
 public:
  // `store`, the driver's address, and `patience`, for how long it is tried: for people.
  // `is_alone`: the job has one node, and its driver is on this host: no network can fail between
  // them.
  DriverAbsence(std::string store, absl::Duration patience, bool is_alone)
      : store_(std::move(store)), patience_(patience), is_alone_(is_alone) {}

  Fence& fence() { return fence_; }

  struct Answer {
    bool must_end = false;  // all ranks, at once
    std::string text;       // for people; empty: nothing
  };
  // `contact`: when the driver was last reached.
  Answer Look(absl::Time now, absl::Time contact, absl::Duration lease, bool has_ranks);

 private:
  const std::string store_;
  const absl::Duration patience_;
  const bool is_alone_;
  Fence fence_;
  bool away_ = false;  // the driver was not reached for the lease
  bool cut_ = false;   // and the ranks were ended for that
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_DRIVER_ABSENCE_H_
