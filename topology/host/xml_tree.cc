#include "topology/host/xml_tree.h"

#include <algorithm>
#include <pugixml.hpp>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// Where lines begin, to turn pugixml's offsets into line numbers.
class Lines {
 public:
  explicit Lines(absl::string_view text) {
    for (size_t i = 0; i < text.size(); ++i) {
      if (text[i] == '\n') ends_.push_back(static_cast<ptrdiff_t>(i));
    }
  }
  int At(ptrdiff_t offset) const {
    return static_cast<int>(std::lower_bound(ends_.begin(), ends_.end(), offset) - ends_.begin()) +
           1;
  }

 private:
  std::vector<ptrdiff_t> ends_;
};

absl::Status LineError(int line, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("line ", line, ": ", reason));
}

absl::Status Copy(pugi::xml_node from, const Lines& lines, int depth, int& elements,
                  XmlElement& to) {
  to.name = from.name();
  to.line = lines.At(from.offset_debug());
  if (depth > kXmlDepthMax) {
    return LineError(to.line, absl::StrCat("<", to.name, "> is nested more than ", kXmlDepthMax,
                                           " elements deep"));
  }
  if (++elements > kXmlElementsMax) {
    return LineError(to.line, absl::StrCat("more than ", kXmlElementsMax, " elements"));
  }
  for (pugi::xml_attribute attribute : from.attributes()) {
    if (to.attributes.size() == kXmlAttributesMax) {
      return LineError(to.line, absl::StrCat("<", to.name, "> has more than ", kXmlAttributesMax,
                                             " attributes"));
    }
    if (to.Find(attribute.name()) != nullptr) {
      return LineError(to.line, absl::StrCat("<", to.name, "> has '", attribute.name(), "' twice"));
    }
    to.attributes.emplace_back(attribute.name(), attribute.value());
  }
  to.text = from.text().get();
  for (pugi::xml_node child : from.children()) {
    if (child.type() != pugi::node_element) continue;
    to.children.emplace_back();
    WEFT_RETURN_IF_ERROR(Copy(child, lines, depth + 1, elements, to.children.back()));
  }
  return absl::OkStatus();
}

}  // namespace

const std::string* XmlElement::Find(absl::string_view attribute) const {
  for (const auto& [key, value] : attributes) {
    if (key == attribute) return &value;
  }
  return nullptr;
}

void XmlElement::Set(absl::string_view attribute, absl::string_view value) {
  for (auto& [key, old] : attributes) {
    if (key == attribute) {
      old = std::string(value);
      return;
    }
  }
  attributes.emplace_back(std::string(attribute), std::string(value));
}

absl::StatusOr<XmlElement> ParseXml(absl::string_view text) {
  if (static_cast<int64_t>(text.size()) > kXmlSizeMax.count()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the XML has ", text.size(), " bytes; at most ", ToString(kXmlSizeMax), " are read"));
  }
  pugi::xml_document document;
  pugi::xml_parse_result result =
      document.load_buffer(text.data(), text.size(), pugi::parse_default, pugi::encoding_utf8);
  const Lines lines(text);
  if (!result) return LineError(lines.At(result.offset), result.description());
  XmlElement root;
  int elements = 0;
  int roots = 0;
  for (pugi::xml_node child : document.children()) {
    if (child.type() != pugi::node_element) continue;
    if (++roots > 1) {
      return LineError(lines.At(child.offset_debug()),
                       absl::StrCat("<", child.name(), "> after the end of <", root.name, ">"));
    }
    WEFT_RETURN_IF_ERROR(Copy(child, lines, 1, elements, root));
  }
  if (roots == 0) return LineError(1, "no XML element");
  return root;
}

absl::Status XmlError(const XmlElement& element, absl::string_view reason) {
  return LineError(element.line, absl::StrCat("<", element.name, "> ", reason));
}

}  // namespace weft::topology
