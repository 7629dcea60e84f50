#include "base/toml.h"

#include <algorithm>
#include <cstdint>
#include <exception>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft {
namespace {

// Walks over strings and comments, and counts what nests outside of them.
class Shape {
 public:
  explicit Shape(absl::string_view text) : text_(text) {}

  absl::Status Check(const std::string& file) {
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '\n') ++line_;
      if (c == '\n' || c == ',' || c == '=') dots_ = 0;
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
      if (depth_ > kTomlBracketsMax || dots_ > kTomlDotsMax) {
        return absl::InvalidArgumentError(
            absl::StrCat(file, ":", line_, ": nested too deeply: at most ", kTomlBracketsMax,
                         " brackets, and ", kTomlDotsMax, " dots in a key"));
      }
      ++at_;
    }
    return absl::OkStatus();
  }

 private:
  void SkipString(char quote) {
    const std::string triple(3, quote);
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

// Bytes of the well-formed character that `text` begins with (RFC 3629, section 4); 0: none.
size_t Utf8Character(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const size_t length = lead >= 0xf0 ? 4 : lead >= 0xe0 ? 3 : 2;
  if (lead < 0xc2 || lead > 0xf4 || text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((static_cast<uint8_t>(text[i]) & 0xc0) != 0x80) return 0;
  }
  const auto second = static_cast<uint8_t>(text[1]);
  const bool wrong = (lead == 0xe0 && second < 0xa0) || (lead == 0xed && second > 0x9f) ||
                     (lead == 0xf0 && second < 0x90) || (lead == 0xf4 && second > 0x8f);
  return wrong ? 0 : length;
}

absl::Status CheckUtf8(absl::string_view text, const std::string& file) {
  for (size_t at = 0; at < text.size();) {
    const size_t length = Utf8Character(text.substr(at));
    if (length == 0) {
      const auto line =
          1 + std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(at), '\n');
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", line, ": not valid TOML: byte 0x",
                       absl::Hex(static_cast<uint8_t>(text[at]), absl::kZeroPad2),
                       " is no UTF-8; save the file as UTF-8"));
    }
    at += length;
  }
  return absl::OkStatus();
}

// "[error] toml::parse_value: found X\n --> file ...": the first line without what is before.
std::string Reason(absl::string_view what) {
  what = what.substr(0, what.find('\n'));
  const size_t scope = what.rfind("toml::");
  if (scope != absl::string_view::npos) {
    const size_t colon = what.find(": ", scope);
    if (colon != absl::string_view::npos) what = what.substr(colon + 2);
  }
  return std::string(what.substr(0, 200));
}

}  // namespace

absl::StatusOr<toml::value> ParseToml(absl::string_view text, const std::string& file) {
  if (text.size() > kTomlSizeMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(file, ": has ", text.size(), " bytes; at most ", kTomlSizeMax));
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

}  // namespace weft
