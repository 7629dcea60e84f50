// What tests of failing groups share: a job over each transport between ranks of a host, whose log
// is silent.
#ifndef WEFT_TESTS_COLLECTIVES_FAILING_GROUPS_H_
#define WEFT_TESTS_COLLECTIVES_FAILING_GROUPS_H_

#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/collectives/job.h"

namespace weft::collectives {

inline std::string Text(const absl::Status& status) { return std::string(status.message()); }

// By the name of a transport.
class FailingGroups : public testing::TestWithParam<const char*> {
 protected:
  SettingPairs With(SettingPairs more = {}) const {
    more.push_back(absl::StrCat("transport=", GetParam()));
    more.emplace_back("log.level=off");
    return more;
  }
};

inline const auto kTransportsOfAHost = testing::Values("shm", "tcp");
inline std::string TransportName(const testing::TestParamInfo<const char*>& transport) {
  return transport.param;
}

}  // namespace weft::collectives

#endif  // WEFT_TESTS_COLLECTIVES_FAILING_GROUPS_H_
