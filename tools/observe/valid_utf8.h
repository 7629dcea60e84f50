// Names and texts out of records, for formats that take UTF-8 alone.
#ifndef WEFT_TOOLS_OBSERVE_VALID_UTF8_H_
#define WEFT_TOOLS_OBSERVE_VALID_UTF8_H_

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/json_text.h"

namespace weft::observe {

// Bytes that are no UTF-8, which a name may have, or get where a record cuts it off, become U+FFFD.
inline std::string ValidUtf8(std::string text) {
  const bool is_ascii = std::all_of(text.begin(), text.end(),
                                    [](char c) { return static_cast<unsigned char>(c) < 0x80; });
  if (is_ascii) return text;
  return nlohmann::json::parse(JsonText(nlohmann::json(std::move(text)))).get<std::string>();
}

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_VALID_UTF8_H_
