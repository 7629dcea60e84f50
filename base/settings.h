// Settings: one table of rows, which environment, command line and docs/settings.md all read.
//
//   row "tcp.sockets"  <->  environment WEFT_TCP_SOCKETS
//                      <->  --set tcp.sockets=2
//                      <->  a row of docs/settings.md
//
// Values are parsed and checked when they are set, never when they are read. An unknown name is
// answered with the nearest known one; a bad value with what would be right. Precedence is the
// order of the Set calls: defaults, then environment, then command line.
//
// The library's rows are in settings_table.cc. A training run has keys of its own, in a second
// table (trainer/config_table.cc), set by a config file (TOML), as [data] prefetch = 2, instead
// of the environment.
#ifndef WEFT_BASE_SETTINGS_H_
#define WEFT_BASE_SETTINGS_H_

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/units.h"

namespace weft {

enum class SettingType {
  kBool,      // true/false, yes/no, on/off, 1/0
  kInteger,   // int64
  kReal,      // double
  kBytes,     // 64KiB, 1.5MB
  kDuration,  // 100ms, 5s, 2m30s
  kText,      // any text
  kChoice,    // one of the words in `allowed`, separated by '|'
};

struct SettingRow {
  absl::string_view name;  // lower case, dotted: "shm.slot_bytes"
  SettingType type;
  absl::string_view standard;  // the default, as text
  absl::string_view allowed;   // kInteger, kReal, kBytes, kDuration: "min..max", either end may be
                               // empty; kChoice: "a|b|c"; else empty
  absl::string_view sentence;  // what it does, one sentence with a full stop
};

// All settings of the library, in the order of docs/settings.md.
absl::Span<const SettingRow> LibrarySettings();

// Values for the rows of one table. Copyable; const use is thread-safe.
class Settings {
 public:
  // Every row at its default. The table must outlive this object.
  explicit Settings(absl::Span<const SettingRow> table);

  // Library settings with what the environment says. Unknown WEFT_* names are errors, so that a
  // typing error is not silently ignored, but for those that the launcher hands to its ranks.
  static absl::StatusOr<Settings> FromEnvironment();

  // `origin` says where the value came from, for messages and for Describe(): "environment",
  // "--set", "demo.toml:12".
  absl::Status Set(absl::string_view name, absl::string_view value, absl::string_view origin);
  // "name=value".
  absl::Status SetPair(absl::string_view pair, absl::string_view origin);
  // Every WEFT_<NAME> of this process's environment. With `strict`, an unknown one is an error.
  absl::Status SetFromEnvironment(bool strict);

  // By name; a name that is not in the table, or of another type, is our own fault and aborts.
  bool Bool(absl::string_view name) const;
  int64_t Integer(absl::string_view name) const;
  double Real(absl::string_view name) const;
  Bytes ByteCount(absl::string_view name) const;
  absl::Duration Duration(absl::string_view name) const;
  const std::string& Text(absl::string_view name) const;  // kText and kChoice

  bool IsDefault(absl::string_view name) const;
  const std::string& Origin(absl::string_view name) const;
  std::string ValueText(absl::string_view name) const;  // as it was written
  absl::Span<const SettingRow> table() const { return table_; }

 private:
  using Value = std::variant<bool, int64_t, double, Bytes, absl::Duration, std::string>;
  struct Entry {
    Value value;
    std::string text;
    std::string origin;
  };
  static absl::StatusOr<Value> Parse(const SettingRow& row, absl::string_view text);
  size_t IndexOf(absl::string_view name) const;  // npos when absent
  template <typename T>
  const T& Get(absl::string_view name) const;

  absl::Span<const SettingRow> table_;
  std::vector<Entry> entries_;
};

// "tcp.sockets" -> "WEFT_TCP_SOCKETS".
std::string EnvironmentName(absl::string_view setting_name);

// The candidate with the smallest edit distance, or "" when none is near.
std::string NearestName(absl::string_view name, const std::vector<std::string>& candidates);

// A Markdown table of the rows, grouped by the part of the name before the first dot.
std::string SettingsMarkdown(absl::Span<const SettingRow> table);

}  // namespace weft

#endif  // WEFT_BASE_SETTINGS_H_
