// Names of the communicators of one endpoint, each of which is used once: a goodbye or a failure of
// a group that has ended may come when PyTorch has given the group's name to another one, as it
// does to groups that are split or made with local synchronization.
#ifndef WEFT_COLLECTIVES_C10D_COMMUNICATOR_NAMES_H_
#define WEFT_COLLECTIVES_C10D_COMMUNICATOR_NAMES_H_

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/ids.h"
#include "collectives/short_name.h"

namespace weft::collectives {

// Thread-safe.
class CommunicatorNames {
 public:
  // A name for the next group called `group` of these ranks of the endpoint: "X", then "X again 1".
  // The same on all of them, as each of them makes the same groups of these ranks, in one order.
  std::string Next(absl::string_view group, const std::vector<Rank>& ranks) {
    const auto append = [](std::string* out, Rank rank) { absl::StrAppend(out, rank.value()); };
    const std::string key = absl::StrCat(group, " of ", absl::StrJoin(ranks, ",", append));
    std::lock_guard<std::mutex> lock(mutex_);
    const int before = made_[ShortName(key)]++;
    return before == 0 ? std::string(group) : absl::StrCat(group, " again ", before);
  }

 private:
  std::mutex mutex_;
  std::map<std::string, int> made_;  // groups so far, by name and ranks
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_C10D_COMMUNICATOR_NAMES_H_
