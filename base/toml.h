// The one way to parse TOML here. toml11 3.7 alone is not safe on untrusted files: deep nesting
// overflows its stack, and on text that is no UTF-8 it reads outside of its buffers.
#ifndef WEFT_BASE_TOML_H_
#define WEFT_BASE_TOML_H_

#include <cstddef>
#include <string>
#include <toml.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft {

inline constexpr size_t kTomlSizeMax = size_t{32} << 20;
inline constexpr int kTomlBracketsMax = 16;  // open at a time
inline constexpr int kTomlDotsMax = 64;      // in one key: each is a table within the one before

// The root, a table. `file` is what errors call the text: InvalidArgument "FILE:LINE: not valid
// TOML: ..." (also for what is no UTF-8) or "FILE:LINE: nested too deeply: ..."; ResourceExhausted:
// larger than kTomlSizeMax. Values know their line (toml::value::location()). Nothing throws.
absl::StatusOr<toml::value> ParseToml(absl::string_view text, const std::string& file);

}  // namespace weft

#endif  // WEFT_BASE_TOML_H_
