#include "trainer/config_toml.h"

#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/read_file.h"
#include "base/status.h"
#include "base/units.h"

namespace weft::train {
namespace {

absl::Status ApplyValue(const std::string& path, const std::string& name, const toml::value& value,
                        Settings& settings) {
  std::string origin = absl::StrCat(path, ":", value.location().line());
  absl::StatusOr<std::string> text = SettingText(value);
  if (!text.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": ", name, " ", text.status().message()));
  }
  return settings.Set(name, *text, origin);
}

// With as many digits as give the number back, and a point or an exponent: TOML takes it for a
// floating-point number then.
std::string RealText(double value) {
  const auto format = [value](int digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    if (text.find_first_of(".e") == std::string::npos) text += ".0";
    return text;
  };
  const std::string brief = format(6);
  return std::stod(brief) == value ? brief : format(17);
}

// A basic string of TOML.
std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (c == '\n') {
      quoted += "\\n";
    } else if (absl::ascii_iscntrl(static_cast<unsigned char>(c)) && c != '\t') {
      absl::StrAppendFormat(&quoted, "\\u%04X", c);
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::string TomlValue(const SettingRow& row, const Settings& settings) {
  switch (row.type) {
    case SettingType::kBool:
      return settings.Bool(row.name) ? "true" : "false";
    case SettingType::kInteger:
      return settings.ValueText(row.name);
    case SettingType::kReal:
      return RealText(settings.Real(row.name));
    default:
      return Quoted(settings.ValueText(row.name));
  }
}

}  // namespace

absl::StatusOr<std::string> SettingText(const toml::value& value) {
  if (value.is_boolean()) return std::string(value.as_boolean() ? "true" : "false");
  if (value.is_integer()) return absl::StrCat(value.as_integer());
  if (value.is_floating()) return absl::StrFormat("%.17g", value.as_floating());
  if (value.is_string()) return std::string(value.as_string().str);
  return absl::InvalidArgumentError("must be a number, a text, true or false");
}

absl::Status ApplyFile(const std::string& path, Settings& settings) {
  WEFT_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, Bytes(kTomlSizeMax)));
  WEFT_ASSIGN_OR_RETURN(const toml::value root, ParseToml(text, path));
  for (const auto& [section, content] : root.as_table()) {
    if (!content.is_table()) {
      WEFT_RETURN_IF_ERROR(ApplyValue(path, section, content, settings));
      continue;
    }
    for (const auto& [key, value] : content.as_table()) {
      WEFT_RETURN_IF_ERROR(ApplyValue(path, absl::StrCat(section, ".", key), value, settings));
    }
  }
  return absl::OkStatus();
}

std::string ToToml(const Settings& settings) {
  std::string text;
  absl::string_view group;
  for (const SettingRow& row : settings.table()) {
    if (row.name == "model.preset" || row.name == "model.style") continue;
    absl::string_view prefix = row.name.substr(0, row.name.find('.'));
    if (prefix != group) {
      absl::StrAppend(&text, group.empty() ? "" : "\n", "[", prefix, "]\n");
      group = prefix;
    }
    absl::StrAppend(&text, row.name.substr(prefix.size() + 1), " = ", TomlValue(row, settings),
                    "\n");
  }
  return text;
}

}  // namespace weft::train
