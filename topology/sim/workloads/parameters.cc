#include "topology/sim/workloads/parameters.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/settings.h"
#include "base/status.h"

namespace weft::topology {
namespace {

std::string Shorten(absl::string_view text) {
  return text.size() <= 60 ? std::string(text) : absl::StrCat(text.substr(0, 57), "...");
}

// A bound as the user would write it.
std::string BoundText(const Parameter& parameter, double bound) {
  switch (parameter.type) {
    case ParameterType::kBytes:
      return ToString(Bytes(static_cast<int64_t>(bound)));
    case ParameterType::kDuration:
      return absl::FormatDuration(absl::Seconds(bound));
    case ParameterType::kBandwidth:
      return ToString(Bandwidth::GigabitsPerSecond(bound));
    default:
      return absl::StrCat(bound);
  }
}

std::string Wanted(const Parameter& parameter) {
  static constexpr const char* kForms[] = {"a whole number",           "a number",
                                           "a size like 64KiB or 2MB", "a time like 1.5us",
                                           "a rate like 400Gbps",      ""};
  if (parameter.type == ParameterType::kChoice) {
    return absl::StrCat("one of ", absl::StrJoin(absl::StrSplit(parameter.choices, '|'), ", "));
  }
  return absl::StrCat(kForms[static_cast<int>(parameter.type)], " from ",
                      BoundText(parameter, parameter.least), " to ",
                      BoundText(parameter, parameter.most));
}

// The value of a number's text in the unit of its bounds.
absl::StatusOr<double> ParseNumber(ParameterType type, absl::string_view text) {
  double number = 0;
  int64_t count = 0;
  absl::Duration time;
  switch (type) {
    case ParameterType::kCount:
      if (absl::SimpleAtoi(text, &count)) return static_cast<double>(count);
      break;
    case ParameterType::kFraction:
      if (absl::SimpleAtod(text, &number) && std::isfinite(number)) return number;
      break;
    case ParameterType::kBytes: {
      WEFT_ASSIGN_OR_RETURN(Bytes bytes, ParseBytes(text));
      return static_cast<double>(bytes.count());
    }
    case ParameterType::kDuration:
      if (absl::ParseDuration(text, &time)) return absl::ToDoubleSeconds(time);
      break;
    case ParameterType::kBandwidth: {
      WEFT_ASSIGN_OR_RETURN(Bandwidth bandwidth, ParseBandwidth(text));
      return bandwidth.gigabits_per_second();
    }
    case ParameterType::kChoice:
      break;
  }
  return absl::InvalidArgumentError("");
}

}  // namespace

absl::Status Parameters::Set(Value& value, absl::string_view text) {
  const Parameter& parameter = *value.parameter;
  value.text = std::string(text);
  if (parameter.type == ParameterType::kChoice) {
    const std::vector<std::string> choices = absl::StrSplit(parameter.choices, '|');
    if (std::find(choices.begin(), choices.end(), text) != choices.end()) return absl::OkStatus();
  } else {
    const absl::StatusOr<double> number = ParseNumber(parameter.type, text);
    if (number.ok() && *number >= parameter.least && *number <= parameter.most) {
      value.number = *number;
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(
      absl::StrCat(parameter.name, "=", Shorten(text), ": wanted is ", Wanted(parameter)));
}

absl::StatusOr<Parameters> Parameters::Parse(absl::string_view text,
                                             absl::Span<const Parameter> table) {
  Parameters parameters;
  std::vector<std::string> names;
  for (const Parameter& parameter : table) {
    Value value{.parameter = &parameter, .text = ""};
    if (*parameter.fallback != '\0') {
      absl::Status status = parameters.Set(value, parameter.fallback);
      WEFT_CHECK(status.ok(), status);
    }
    parameters.values_.push_back(std::move(value));
    names.emplace_back(parameter.name);
  }
  if (text.empty()) return parameters;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const absl::string_view name = absl::StripAsciiWhitespace(pair.first);
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end()) {
      const std::string nearest = NearestName(std::string(Shorten(name)), names);
      return absl::InvalidArgumentError(
          absl::StrCat("no key \"", Shorten(name), "\"",
                       nearest.empty() ? "" : absl::StrCat(" (nearest: ", nearest, ")"),
                       "; there are: ", absl::StrJoin(names, ", ")));
    }
    Value& value = parameters.values_[static_cast<size_t>(found - names.begin())];
    if (std::exchange(value.given, true)) {
      return absl::InvalidArgumentError(absl::StrCat(name, " is given twice"));
    }
    WEFT_RETURN_IF_ERROR(parameters.Set(value, absl::StripAsciiWhitespace(pair.second)));
  }
  return parameters;
}

const Parameters::Value& Parameters::Find(absl::string_view name) const {
  for (const Value& value : values_) {
    if (value.parameter->name == name) return value;
  }
  WEFT_CHECK(false, "no parameter " << name);
}

int64_t Parameters::Count(absl::string_view name) const {
  return static_cast<int64_t>(Find(name).number);
}
double Parameters::Fraction(absl::string_view name) const { return Find(name).number; }
Bytes Parameters::ByteCount(absl::string_view name) const { return Bytes(Count(name)); }
absl::Duration Parameters::Time(absl::string_view name) const {
  return absl::Seconds(Find(name).number);
}
Bandwidth Parameters::Rate(absl::string_view name) const {
  return Bandwidth::GigabitsPerSecond(Find(name).number);
}
const std::string& Parameters::Choice(absl::string_view name) const { return Find(name).text; }
bool Parameters::Given(absl::string_view name) const { return Find(name).given; }

std::string ParametersHelp(absl::Span<const Parameter> table, absl::string_view indent) {
  std::string help;
  for (const Parameter& parameter : table) {
    const char* fallback = *parameter.fallback == '\0' ? "..." : parameter.fallback;
    absl::StrAppend(&help, indent, parameter.name, "=", fallback, "  ", parameter.help, "; ",
                    Wanted(parameter), "\n");
  }
  return help;
}

}  // namespace weft::topology
