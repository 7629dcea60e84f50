// JSON values as text.
#ifndef WEFT_BASE_JSON_TEXT_H_
#define WEFT_BASE_JSON_TEXT_H_

#include <string>

namespace weft {

// `indent`: blanks of a level; -1: all in one line. Bytes that are no UTF-8, as a path or another
// program's words may have, become U+FFFD: dump() throws for them.
template <typename Json>
std::string JsonText(const Json& json, int indent = -1) {
  return json.dump(indent, ' ', false, Json::error_handler_t::replace);
}

}  // namespace weft

#endif  // WEFT_BASE_JSON_TEXT_H_
