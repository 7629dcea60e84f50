// Named and bounded reading of environment variables. What is wrong is collected, so that one error
// names every variable that is missing or bad, its value, and what would be right. Not thread-safe.
#ifndef WEFT_COLLECTIVES_RENDEZVOUS_ENVIRONMENT_VARIABLES_H_
#define WEFT_COLLECTIVES_RENDEZVOUS_ENVIRONMENT_VARIABLES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace weft::collectives {

// The value of a variable; nothing: it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(absl::string_view name)>;

EnvironmentLookup ProcessEnvironment();  // of this process

class EnvironmentVariables {
 public:
  explicit EnvironmentVariables(EnvironmentLookup lookup);

  // An empty value counts as none.
  std::optional<std::string> Text(absl::string_view name) const;
  bool Has(absl::string_view name) const { return Text(name).has_value(); }
  bool HasOneOf(const std::vector<absl::string_view>& names) const;

  // Without a value: the variable is not set, or its value is bad, which becomes a problem.
  std::optional<int64_t> Number(absl::string_view name, int64_t min, int64_t max);
  std::optional<int> Int(absl::string_view name, int min, int max);
  // Not being set is a problem too. With a problem: `min`.
  int RequiredInt(absl::string_view name, int min, int max);
  std::string RequiredText(absl::string_view name);

  void AddProblem(std::string problem);  // once
  const std::vector<std::string>& problems() const { return problems_; }
  const EnvironmentLookup& lookup() const { return lookup_; }

 private:
  EnvironmentLookup lookup_;
  std::vector<std::string> problems_;
};

}  // namespace weft::collectives

#endif  // WEFT_COLLECTIVES_RENDEZVOUS_ENVIRONMENT_VARIABLES_H_
