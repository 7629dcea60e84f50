// Text inside XML and SVG.
#ifndef WEFT_BASE_XML_TEXT_H_
#define WEFT_BASE_XML_TEXT_H_

#include <string>

#include "absl/strings/string_view.h"

namespace weft {

// `text` as the content of an element, or of an attribute between double quotes: & < > and " are
// escaped. What XML 1.0 forbids (section 2.2, "Characters") is dropped: control characters but tab,
// line feed and carriage return, and bytes that are no UTF-8, such as a letter that was cut in two.
std::string XmlText(absl::string_view text);

}  // namespace weft

#endif  // WEFT_BASE_XML_TEXT_H_
