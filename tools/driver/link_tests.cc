#include "tools/driver/link_tests.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace weft::driver {

std::vector<LinkTest> LinkTestsOf(absl::string_view transport,
                                  const std::vector<std::vector<std::string>>& ports, size_t self) {
  const bool is_auto = transport == "auto" || transport == "shm";
  if (!is_auto && transport != "verbs") return {{.transport = std::string(transport)}};
  std::vector<LinkTest> tests;
  if (is_auto) tests.push_back({.transport = "tcp"});
  size_t rails = ports[self].size();
  for (const std::vector<std::string>& of_process : ports) {
    rails = std::min(rails, of_process.size());
  }
  for (size_t rail = 0; rail < rails; ++rail) {
    tests.push_back({.transport = "verbs", .device = absl::StrCat("=", ports[self][rail])});
  }
  // What was asked for has to fail where it is not there.
  if (tests.empty()) tests.push_back({.transport = "verbs"});
  return tests;
}

}  // namespace weft::driver
