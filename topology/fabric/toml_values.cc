#include "topology/fabric/toml_values.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/settings.h"
#include "base/status.h"

namespace weft::topology {
std::string TomlValues::Where(const toml::value& at) const {
  return absl::StrCat(file_, ":", at.location().line());
}

absl::Status TomlValues::At(const toml::value& at, const absl::Status& status) const {
  return status.ok() ? status : Annotate(status, Where(at));
}

const toml::value* TomlValues::Get(const toml::value& table, const std::string& key) {
  auto found = table.as_table().find(key);
  return found == table.as_table().end() ? nullptr : &found->second;
}

absl::Status TomlValues::CheckKeys(const toml::value& value, absl::string_view what,
                                   const std::vector<std::string>& known) const {
  if (!value.is_table()) return Error(value, what, " must be a table");
  for (const auto& [key, item] : value.as_table()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    std::string nearest = NearestName(absl::string_view(key).substr(0, 64), known);
    return Error(item, what, " has no key \"", key.substr(0, 64), "\"; ",
                 nearest.empty() ? absl::StrCat("it has ", absl::StrJoin(known, ", "))
                                 : absl::StrCat("nearest: ", nearest));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> TomlValues::Text(const toml::value& value,
                                             absl::string_view key) const {
  if (!value.is_string()) return Error(value, key, " must be a text in quotes");
  return std::string(value.as_string().str);
}

absl::Status TomlValues::Read(const toml::value& table, const std::string& key,
                              Bandwidth& field) const {
  const toml::value* value = Get(table, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string()) return Error(*value, key, " must be a text as \"400Gbps\"");
  absl::StatusOr<Bandwidth> parsed = ParseBandwidth(value->as_string().str);
  if (!parsed.ok()) return At(*value, Annotate(parsed.status(), key));
  if (!(*parsed > Bandwidth())) return Error(*value, key, " must be above 0");
  field = *parsed;
  return absl::OkStatus();
}

absl::Status TomlValues::Read(const toml::value& table, const std::string& key,
                              absl::Duration& field) const {
  const toml::value* value = Get(table, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_string() || !absl::ParseDuration(value->as_string().str, &field)) {
    return Error(*value, key, " must be a time as \"500ns\" or \"1us\"");
  }
  return absl::OkStatus();
}

absl::Status TomlValues::Read(const toml::value& table, const std::string& key,
                              Bytes& field) const {
  const toml::value* value = Get(table, key);
  if (value == nullptr) return absl::OkStatus();
  if (value->is_integer() && value->as_integer() >= 0) {
    field = Bytes(value->as_integer());
    return absl::OkStatus();
  }
  if (!value->is_string()) return Error(*value, key, " must be a size as \"64KiB\" or 65536");
  absl::StatusOr<Bytes> parsed = ParseBytes(value->as_string().str);
  if (!parsed.ok()) return At(*value, Annotate(parsed.status(), key));
  field = *parsed;
  return absl::OkStatus();
}

absl::Status TomlValues::Read(const toml::value& table, const std::string& key, int least, int most,
                              int& field) const {
  const toml::value* value = Get(table, key);
  if (value == nullptr) return absl::OkStatus();
  if (!value->is_integer() || value->as_integer() < least || value->as_integer() > most) {
    return Error(*value, key, " must be a whole number from ", least, " to ", most);
  }
  field = static_cast<int>(value->as_integer());
  return absl::OkStatus();
}

}  // namespace weft::topology
