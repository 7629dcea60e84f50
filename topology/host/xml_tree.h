// An XML file as a tree of elements with their lines, read within fixed bounds, so that no file
// makes its reader recurse or allocate without end. Text between elements, comments and
// declarations are passed over; entities of a DTD are not expanded (pugixml knows none).
#ifndef WEFT_TOPOLOGY_HOST_XML_TREE_H_
#define WEFT_TOPOLOGY_HOST_XML_TREE_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"

namespace weft::topology {

struct XmlElement {
  std::string name;
  std::vector<std::pair<std::string, std::string>> attributes;  // in the file's order
  std::vector<XmlElement> children;
  std::string text;  // of the element itself, if it has any
  int line = 0;      // of its "<", from 1; 0: made, not read

  // Null: it has none of this name.
  const std::string* Find(absl::string_view attribute) const;
  void Set(absl::string_view attribute, absl::string_view value);  // replaces or appends
};

// An hwloc file of the largest machines is 2 MB, 20 deep.
inline constexpr Bytes kXmlSizeMax = MiB(32);
inline constexpr int kXmlDepthMax = 64;
inline constexpr int kXmlElementsMax = 200000;
inline constexpr size_t kXmlAttributesMax = 64;  // of one element

// The root element. InvalidArgument "line 12: ...": no XML, or beyond the bounds.
absl::StatusOr<XmlElement> ParseXml(absl::string_view text);

// "line 12: <pci> ...": how every reader of such a tree reports what is wrong in it.
absl::Status XmlError(const XmlElement& element, absl::string_view reason);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_XML_TREE_H_
