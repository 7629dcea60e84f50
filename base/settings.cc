#include "base/settings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace weft {
namespace {

constexpr size_t kAbsent = static_cast<size_t>(-1);

// Beginnings of WEFT_* names that are no settings: the launcher's hand-over to its ranks, what the
// tests are told, and tools/dev's own. A setting of the table goes before them.
constexpr auto kExemptPrefixes = std::to_array<absl::string_view>(
    {"WEFT_JOB_", "WEFT_STORE", "WEFT_GENERATION", "WEFT_RECOVER", "WEFT_LAST_END", "WEFT_BIN",
     "WEFT_SOURCE", "WEFT_DEPS_DIR", "WEFT_BENCH_", "WEFT_TORCH_PYTHON", "WEFT_LAYOUTS",
     "WEFT_ROCE"});

bool IsExempt(absl::string_view name) {
  return std::any_of(kExemptPrefixes.begin(), kExemptPrefixes.end(),
                     [&](absl::string_view prefix) { return absl::StartsWith(name, prefix); });
}

absl::Status Invalid(const SettingRow& row, absl::string_view text, absl::string_view right) {
  return absl::InvalidArgumentError(
      absl::StrCat("setting ", row.name, " = \"", text, "\": ", right));
}

// Checks `value` against "min..max"; `parse` reads a bound in the value's own type.
template <typename T, typename ParseFn>
absl::Status CheckRange(const SettingRow& row, absl::string_view text, const T& value,
                        ParseFn parse) {
  if (row.allowed.empty()) return absl::OkStatus();
  std::pair<std::string, std::string> bounds = absl::StrSplit(row.allowed, "..");
  bool low = !bounds.first.empty() && value < *parse(bounds.first);
  bool high = !bounds.second.empty() && *parse(bounds.second) < value;
  if (!low && !high) return absl::OkStatus();
  return Invalid(row, text, absl::StrCat("must lie in ", row.allowed));
}

absl::StatusOr<int64_t> ParseInteger(absl::string_view text) {
  int64_t value = 0;
  if (!absl::SimpleAtoi(text, &value)) return absl::InvalidArgumentError("must be a whole number");
  return value;
}

absl::StatusOr<double> ParseReal(absl::string_view text) {
  double value = 0;
  if (!absl::SimpleAtod(text, &value) || !std::isfinite(value)) {
    return absl::InvalidArgumentError("must be a number");
  }
  return value;
}

absl::StatusOr<absl::Duration> ParseTime(absl::string_view text) {
  absl::Duration value;
  if (!absl::ParseDuration(std::string(text), &value)) {
    return absl::InvalidArgumentError("must be a duration such as 200us, 100ms, 5s or 2m");
  }
  return value;
}

absl::StatusOr<bool> ParseBool(absl::string_view text) {
  std::string word = absl::AsciiStrToLower(text);
  if (word == "1" || word == "true" || word == "yes" || word == "on") return true;
  if (word == "0" || word == "false" || word == "no" || word == "off") return false;
  return absl::InvalidArgumentError("must be true or false");
}

const char* TypeName(SettingType type) {
  switch (type) {
    case SettingType::kBool:
      return "true or false";
    case SettingType::kInteger:
      return "integer";
    case SettingType::kReal:
      return "number";
    case SettingType::kBytes:
      return "bytes";
    case SettingType::kDuration:
      return "duration";
    case SettingType::kText:
      return "text";
    case SettingType::kChoice:
      return "choice";
  }
  return "";
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i);
    for (size_t j = 1; j <= b.size(); ++j) {
      size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = std::exchange(row[j], std::min({row[j] + 1, row[j - 1] + 1, substitute}));
    }
  }
  return row[b.size()];
}

}  // namespace

Settings::Settings(absl::Span<const SettingRow> table) : table_(table) {
  const auto defaults = [table] {
    std::vector<Entry> entries;
    entries.reserve(table.size());
    for (const SettingRow& row : table) {
      absl::StatusOr<Value> value = Parse(row, row.standard);
      WEFT_CHECK(value.ok(), "default of " << row.name << ": " << value.status().ToString());
      entries.push_back({*std::move(value), std::string(row.standard), "default"});
    }
    return entries;
  };
  if (table.data() != LibrarySettings().data() || table.size() != LibrarySettings().size()) {
    entries_ = defaults();
    return;
  }
  // Parsing takes some 50 us, and a process that joins a job makes half a dozen of these.
  static const auto* const library = new std::vector<Entry>(defaults());
  entries_ = *library;
}

absl::StatusOr<Settings> Settings::FromEnvironment() {
  Settings settings(LibrarySettings());
  WEFT_RETURN_IF_ERROR(settings.SetFromEnvironment(/*strict=*/true));
  return settings;
}

absl::StatusOr<Settings::Value> Settings::Parse(const SettingRow& row, absl::string_view text) {
  auto finish = [&](auto parsed, auto parse) -> absl::StatusOr<Value> {
    if (!parsed.ok()) return Invalid(row, text, parsed.status().message());
    WEFT_RETURN_IF_ERROR(CheckRange(row, text, *parsed, parse));
    return Value(*parsed);
  };
  switch (row.type) {
    case SettingType::kBool: {
      absl::StatusOr<bool> value = ParseBool(text);
      if (!value.ok()) return Invalid(row, text, value.status().message());
      return Value(*value);
    }
    case SettingType::kInteger:
      return finish(ParseInteger(text), ParseInteger);
    case SettingType::kReal:
      return finish(ParseReal(text), ParseReal);
    case SettingType::kBytes:
      return finish(ParseBytes(text), ParseBytes);
    case SettingType::kDuration:
      return finish(ParseTime(text), ParseTime);
    case SettingType::kText:
      return Value(std::string(text));
    case SettingType::kChoice: {
      std::vector<std::string> words = absl::StrSplit(row.allowed, '|');
      if (std::find(words.begin(), words.end(), text) != words.end()) {
        return Value(std::string(text));
      }
      return Invalid(row, text, absl::StrCat("must be one of ", absl::StrJoin(words, ", ")));
    }
  }
  return absl::InternalError("unreachable");
}

size_t Settings::IndexOf(absl::string_view name) const {
  for (size_t i = 0; i < table_.size(); ++i) {
    if (table_[i].name == name) return i;
  }
  return kAbsent;
}

absl::Status Settings::Set(absl::string_view name, absl::string_view value,
                           absl::string_view origin) {
  size_t index = IndexOf(name);
  if (index == kAbsent) {
    std::vector<std::string> names;
    for (const SettingRow& row : table_) names.emplace_back(row.name);
    std::string nearest = NearestName(name, names);
    return absl::NotFoundError(absl::StrCat(
        origin, ": no setting is named \"", name, "\"",
        nearest.empty() ? std::string() : absl::StrCat("; did you mean ", nearest, "?")));
  }
  absl::StatusOr<Value> parsed = Parse(table_[index], value);
  if (!parsed.ok()) return Annotate(parsed.status(), origin);
  entries_[index] = {*std::move(parsed), std::string(value), std::string(origin)};
  return absl::OkStatus();
}

absl::Status Settings::SetPair(absl::string_view pair, absl::string_view origin) {
  std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(pair, absl::MaxSplits('=', 1));
  if (!absl::StrContains(pair, "=")) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": \"", pair, "\" is no setting; write name=value"));
  }
  return Set(absl::StripAsciiWhitespace(parts.first), absl::StripAsciiWhitespace(parts.second),
             origin);
}

absl::Status Settings::SetFromEnvironment(bool strict) {
  for (char** entry = environ; *entry != nullptr; ++entry) {
    std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(absl::string_view(*entry), absl::MaxSplits('=', 1));
    if (!absl::StartsWith(parts.first, "WEFT_")) continue;
    const SettingRow* found = nullptr;
    for (const SettingRow& row : table_) {
      if (EnvironmentName(row.name) == parts.first) found = &row;
    }
    if (found == nullptr) {
      if (!strict || IsExempt(parts.first)) continue;
      std::vector<std::string> names;
      for (const SettingRow& row : table_) names.push_back(EnvironmentName(row.name));
      std::string nearest = NearestName(parts.first, names);
      return absl::NotFoundError(absl::StrCat(
          "environment: no setting is named ", parts.first,
          nearest.empty() ? std::string() : absl::StrCat("; did you mean ", nearest, "?")));
    }
    WEFT_RETURN_IF_ERROR(Set(found->name, parts.second, "environment"));
  }
  return absl::OkStatus();
}

template <typename T>
const T& Settings::Get(absl::string_view name) const {
  size_t index = IndexOf(name);
  WEFT_CHECK(index != kAbsent, "setting " << name << " is in no table");
  const T* value = std::get_if<T>(&entries_[index].value);
  WEFT_CHECK(value != nullptr, "setting " << name << " has another type");
  return *value;
}

bool Settings::Bool(absl::string_view name) const { return Get<bool>(name); }
int64_t Settings::Integer(absl::string_view name) const { return Get<int64_t>(name); }
double Settings::Real(absl::string_view name) const { return Get<double>(name); }
Bytes Settings::ByteCount(absl::string_view name) const { return Get<Bytes>(name); }
absl::Duration Settings::Duration(absl::string_view name) const {
  return Get<absl::Duration>(name);
}
const std::string& Settings::Text(absl::string_view name) const { return Get<std::string>(name); }

bool Settings::IsDefault(absl::string_view name) const { return Origin(name) == "default"; }

const std::string& Settings::Origin(absl::string_view name) const {
  size_t index = IndexOf(name);
  WEFT_CHECK(index != kAbsent, "setting " << name << " is in no table");
  return entries_[index].origin;
}

std::string Settings::ValueText(absl::string_view name) const {
  size_t index = IndexOf(name);
  WEFT_CHECK(index != kAbsent, "setting " << name << " is in no table");
  return entries_[index].text;
}

std::string EnvironmentName(absl::string_view setting_name) {
  return absl::StrCat("WEFT_",
                      absl::AsciiStrToUpper(absl::StrReplaceAll(setting_name, {{".", "_"}})));
}

std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates) {
  std::string best;
  size_t best_distance = std::max<size_t>(2, name.size() / 2);
  for (const std::string& candidate : candidates) {
    size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  }
  return best;
}

std::string SettingsMarkdown(absl::Span<const SettingRow> table) {
  std::string text;
  absl::string_view group;
  for (const SettingRow& row : table) {
    absl::string_view prefix = row.name.substr(0, row.name.find('.'));
    if (prefix != group) {
      group = prefix;
      absl::StrAppend(&text, "\n## ", group,
                      "\n\n| setting | environment | type | default | allowed | what it does |\n"
                      "|---|---|---|---|---|---|\n");
    }
    std::string allowed = absl::StrReplaceAll(row.allowed, {{"|", ", "}});
    absl::StrAppend(
        &text, "| `", row.name, "` | `", EnvironmentName(row.name), "` | ", TypeName(row.type),
        " | ", row.standard.empty() ? std::string("empty") : absl::StrCat("`", row.standard, "`"),
        " | ", allowed, " | ", row.sentence, " |\n");
  }
  return text;
}

}  // namespace weft
