// A store in memory whose next answer to a compare-and-set does not come in time, although the
// store does what was asked.
#ifndef WEFT_TESTS_TOOLS_DRIVER_SLOW_STORE_H_
#define WEFT_TESTS_TOOLS_DRIVER_SLOW_STORE_H_

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/collectives/memory_store.h"

namespace weft::driver {

class SlowStore final : public collectives::MemoryStore {
 public:
  absl::StatusOr<std::string> CompareSet(absl::string_view key, absl::string_view expected,
                                         absl::string_view desired) override {
    absl::StatusOr<std::string> held = MemoryStore::CompareSet(key, expected, desired);
    if (!std::exchange(loses_next_, false)) return held;
    return absl::DeadlineExceededError("the store does not answer");
  }
  void LoseNext() { loses_next_ = true; }

 private:
  bool loses_next_ = false;
};

}  // namespace weft::driver

#endif  // WEFT_TESTS_TOOLS_DRIVER_SLOW_STORE_H_
