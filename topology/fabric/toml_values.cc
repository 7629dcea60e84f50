#include "topology/fabric/toml_values.h"

#include <algorithm>
#include <exception>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_join.h"
#include "base/settings.h"
#include "base/status.h"
#include "base/utf8.h"

namespace weft::topology {
namespace {

constexpr size_t kMaxSize = size_t{32} << 20;
constexpr int kMaxDepth = 16;
constexpr int kMaxDots = 64;  // outside of quotes in one line: dotted keys nest as well

// Walks over strings and comments, and counts what nests outside of them.
class Shape {
 public:
  explicit Shape(absl::string_view text) : text_(text) {}

  absl::Status Check(const std::string& file) {
    while (at_ < text_.size()) {
      char c = text_[at_];
      if (c == '\n') {
        ++line_;
        dots_ = 0;
      }
      if (c == '#') {
        at_ = std::min(text_.find('\n', at_), text_.size());
        continue;
      }
      if (c == '"' || c == '\'') {
        SkipString(c);
        continue;
      }
      if (c == '[' || c == '{') ++depth_;
      if (c == ']' || c == '}') depth_ = std::max(0, depth_ - 1);
      if (c == '.') ++dots_;
      if (depth_ > kMaxDepth || dots_ > kMaxDots) {
        return absl::InvalidArgumentError(
            absl::StrCat(file, ":", line_, ": nested too deeply: at most ", kMaxDepth,
                         " brackets, and ", kMaxDots, " dots in a line"));
      }
      ++at_;
    }
    return absl::OkStatus();
  }

 private:
  void SkipString(char quote) {
    std::string triple(3, quote);
    if (absl::StartsWith(text_.substr(at_), triple)) {
      size_t end = text_.find(triple, at_ + 3);
      end = end == absl::string_view::npos ? text_.size() : end + 3;
      line_ += static_cast<int>(std::count(text_.begin() + at_, text_.begin() + end, '\n'));
      at_ = end;
      return;
    }
    for (++at_; at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n'; ++at_) {
      if (quote == '"' && text_[at_] == '\\') ++at_;
    }
    if (at_ < text_.size() && text_[at_] == quote) ++at_;
  }

  absl::string_view text_;
  size_t at_ = 0;
  int line_ = 1;
  int depth_ = 0;
  int dots_ = 0;
};

// "[error] toml::parse_value: found X\n --> file ...": the first line without what is before.
std::string Reason(absl::string_view what) {
  what = what.substr(0, what.find('\n'));
  size_t scope = what.rfind("toml::");
  if (scope != absl::string_view::npos) {
    size_t colon = what.find(": ", scope);
    if (colon != absl::string_view::npos) what = what.substr(colon + 2);
  }
  return std::string(what.substr(0, 200));
}

}  // namespace

absl::StatusOr<toml::value> ParseToml(absl::string_view text, const std::string& file) {
  if (text.size() > kMaxSize) {
    return absl::ResourceExhaustedError(
        absl::StrCat(file, ": has ", text.size(), " bytes; at most ", kMaxSize));
  }
  WEFT_RETURN_IF_ERROR(Shape(text).Check(file));
  WEFT_RETURN_IF_ERROR(CheckUtf8(text, file));
  std::istringstream stream{std::string(text)};
  try {
    return toml::parse(stream, file);
  } catch (const toml::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(file, ":", error.location().line(),
                                                   ": not valid TOML: ", Reason(error.what())));
  } catch (const std::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": not valid TOML: ", Reason(error.what())));
  }
}

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
