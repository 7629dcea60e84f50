// NCCL's topology file: what NCCL_TOPO_FILE reads and NCCL_TOPO_DUMP_FILE writes (NCCL 2.19 to
// 2.30; src/graph/xml.cc, topo.cc). The tree keeps every element and attribute, also those that
// only another version of NCCL knows, so that a file goes through unchanged but for comments and
// space.
//
//   <system version="1">
//     <cpu numaid="0" affinity="0000ffff,ffff0000" arch="x86_64" vendor="GenuineIntel" ...>
//       <pci busid="0000:3a:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
//         <pci busid="0000:3b:00.0" class="0x030200" ...>
//           <gpu dev="0" sm="90" rank="0" gdr="1"> <nvlink target=... count=... tclass=.../> </gpu>
//         </pci>
//         <pci ...> <nic> <net name="mlx5_0" dev="0" speed="400000" port="1" guid="0x..."/> </nic>
//
// NCCL's own reader is no XML reader: it wants no declaration, no entities, no blank within a tag
// but one before each attribute. What is written here it can read.
#ifndef WEFT_TOPOLOGY_HOST_NCCL_XML_H_
#define WEFT_TOPOLOGY_HOST_NCCL_XML_H_

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "topology/host/xml_tree.h"

namespace weft::topology {

// NCCL's own bounds (xml.h of 2.28); the writer keeps them, the reader does not ask.
inline constexpr int kNcclElementsMax = 256;
inline constexpr int kNcclChildrenMax = 128;
inline constexpr int kNcclAttributesMax = 16;
inline constexpr size_t kNcclTextMax = 254;

// The <system> element. InvalidArgument "line 12: <pci> busid ...": no XML, another version, an
// element that NCCL knows in a place where it would pass over it, an attribute that is missing or
// of the wrong form. Elements and attributes that are not known are kept.
absl::StatusOr<XmlElement> ParseNcclXml(absl::string_view text);

// In the form of NCCL's dumps. InvalidArgument: more than NCCL reads, or a value with a character
// (quotation mark, angle bracket, ampersand, below a blank) that its reader takes for something
// else.
absl::StatusOr<std::string> NcclXmlText(const XmlElement& system);

// The same elements with the same attributes in the same order, whatever their lines.
bool SameXml(const XmlElement& a, const XmlElement& b);

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_HOST_NCCL_XML_H_
