// Costs, calls and groups that tests of the planner share.
#ifndef WEFT_TESTS_COLLECTIVES_PLANNER_CASES_H_
#define WEFT_TESTS_COLLECTIVES_PLANNER_CASES_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/settings.h"
#include "collectives/group_place.h"
#include "collectives/planner/planner.h"

namespace weft::collectives::planner {

// The default costs, with `cores` on each host.
inline CostTable Table(int cores = 64, const char* transport = "auto") {
  Settings settings(LibrarySettings());
  EXPECT_TRUE(settings.Set("transport", transport, "test").ok());
  return TableFor(DefaultCalibration(), settings, cores);
}

// A collective of `n` ranks on one host.
inline CollectiveSpec Spec(CollectiveKind kind, int n, uint64_t count) {
  return {.kind = kind, .size = n, .count = count, .chunk = 65536};
}

// Ranks by host, one host after another.
inline std::shared_ptr<const GroupPlace> Hosts(int hosts, int ranks_each) {
  std::vector<std::string> names;
  for (int r = 0; r < hosts * ranks_each; ++r) names.push_back(absl::StrCat(r / ranks_each));
  return std::make_shared<const GroupPlace>(names);
}

}  // namespace weft::collectives::planner

#endif  // WEFT_TESTS_COLLECTIVES_PLANNER_CASES_H_
