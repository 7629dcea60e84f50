#include "collectives/rendezvous/environment_variables.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace weft::collectives {

EnvironmentLookup ProcessEnvironment() {
  return [](absl::string_view name) -> std::optional<std::string> {
    const char* value = std::getenv(std::string(name).c_str());
    if (value == nullptr) return std::nullopt;
    return value;
  };
}

EnvironmentVariables::EnvironmentVariables(EnvironmentLookup lookup) : lookup_(std::move(lookup)) {}

std::optional<std::string> EnvironmentVariables::Text(absl::string_view name) const {
  std::optional<std::string> value = lookup_(name);
  return value.has_value() && value->empty() ? std::nullopt : value;
}

bool EnvironmentVariables::HasOneOf(const std::vector<absl::string_view>& names) const {
  return std::any_of(names.begin(), names.end(),
                     [this](absl::string_view name) { return Has(name); });
}

std::optional<int64_t> EnvironmentVariables::Number(absl::string_view name, int64_t min,
                                                    int64_t max) {
  const std::optional<std::string> text = Text(name);
  if (!text.has_value()) return std::nullopt;
  int64_t value = 0;
  if (absl::SimpleAtoi(*text, &value) && value >= min && value <= max) return value;
  AddProblem(absl::StrCat(name, "='", *text, "' is no number from ", min, " to ", max));
  return std::nullopt;
}

std::optional<int> EnvironmentVariables::Int(absl::string_view name, int min, int max) {
  const std::optional<int64_t> value = Number(name, min, max);
  if (!value.has_value()) return std::nullopt;
  return static_cast<int>(*value);
}

int EnvironmentVariables::RequiredInt(absl::string_view name, int min, int max) {
  if (!Has(name)) AddProblem(absl::StrCat(name, " is not set"));
  return Int(name, min, max).value_or(min);
}

std::string EnvironmentVariables::RequiredText(absl::string_view name) {
  std::optional<std::string> text = Text(name);
  if (!text.has_value()) AddProblem(absl::StrCat(name, " is not set"));
  return std::move(text).value_or("");
}

void EnvironmentVariables::AddProblem(std::string problem) {
  if (std::find(problems_.begin(), problems_.end(), problem) != problems_.end()) return;
  problems_.push_back(std::move(problem));
}

}  // namespace weft::collectives
