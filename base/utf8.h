// What is no UTF-8 is told apart before it is parsed: toml11 3.7 reads outside of its buffers when
// it meets such a string.
#ifndef WEFT_BASE_UTF8_H_
#define WEFT_BASE_UTF8_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace weft {

// Bytes of the well-formed character that `text` begins with (RFC 3629, section 4); 0: none.
inline size_t Utf8Character(absl::string_view text) {
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

// kInvalidArgument, "FILE:LINE: ...", at the first byte that is not part of a character.
inline absl::Status CheckUtf8(absl::string_view text, absl::string_view file) {
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

}  // namespace weft

#endif  // WEFT_BASE_UTF8_H_
