#include "topology/host/nccl_xml.h"

#include <algorithm>
#include <array>
#include <cstdint>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "base/status.h"
#include "topology/host/cpu_mask.h"
#include "topology/host/pci.h"

namespace weft::topology {
namespace {

enum class Form { kInteger, kNumber, kHexOrInteger, kPciAddress, kPciClass, kMask };

struct AttributeRule {
  const char* element;
  const char* attribute;
  Form form;
  bool required;
};

// Texts that may be anything (names, vendors, link_speed) have no row unless they must be there.
// NCCL fills in what a file leaves out of a <pci> from /sys, so little is required.
constexpr AttributeRule kRules[] = {
    {"cpu", "numaid", Form::kInteger, true},
    {"cpu", "affinity", Form::kMask, false},
    {"cpu", "familyid", Form::kInteger, false},
    {"cpu", "modelid", Form::kInteger, false},
    {"cpu", "host_hash", Form::kHexOrInteger, false},
    {"pci", "busid", Form::kPciAddress, true},
    {"pci", "class", Form::kPciClass, false},
    {"pci", "vendor", Form::kHexOrInteger, false},
    {"pci", "device", Form::kHexOrInteger, false},
    {"pci", "subsystem_vendor", Form::kHexOrInteger, false},
    {"pci", "subsystem_device", Form::kHexOrInteger, false},
    {"pci", "link_width", Form::kInteger, false},
    {"gpu", "dev", Form::kInteger, true},
    {"gpu", "sm", Form::kInteger, false},
    {"gpu", "rank", Form::kInteger, false},
    {"gpu", "gdr", Form::kInteger, false},
    {"nvlink", "count", Form::kInteger, true},
    {"nvlink", "tclass", Form::kPciClass, false},
    {"c2c", "bw", Form::kInteger, true},
    {"c2c", "count", Form::kInteger, true},
    {"net", "dev", Form::kInteger, false},
    {"net", "speed", Form::kInteger, false},
    {"net", "port", Form::kInteger, false},
    {"net", "latency", Form::kNumber, false},
    {"net", "guid", Form::kHexOrInteger, false},
    {"net", "maxconn", Form::kInteger, false},
    {"net", "gdr", Form::kInteger, false},
    {"net", "coll", Form::kInteger, false},
};
constexpr std::array<std::array<const char*, 2>, 3> kRequiredTexts = {
    {{"net", "name"}, {"nvlink", "target"}, {"pcilink", "target"}}};

struct Placement {
  const char* element;
  std::array<const char*, 2> parents;
};
constexpr Placement kPlaces[] = {
    {"cpu", {"system"}}, {"pci", {"cpu", "pci"}}, {"gpu", {"pci"}}, {"nic", {"pci", "cpu"}},
    {"net", {"nic"}},    {"nvlink", {"gpu"}},     {"c2c", {"gpu"}}, {"pcilink", {"pci"}},
};

const char* Wanted(Form form) {
  switch (form) {
    case Form::kInteger:
      return "a whole number";
    case Form::kNumber:
      return "a number";
    case Form::kHexOrInteger:
      return "a number, as 0x10de";
    case Form::kPciAddress:
      return "a PCI address, as 0000:3b:00.0";
    case Form::kPciClass:
      return "a PCI class, as 0x030200";
    case Form::kMask:
      return "a mask of at most 8192 CPUs, as 0000ffff,ffff0000";
  }
  return "?";
}

bool IsHexOrInteger(absl::string_view text) {
  uint64_t value = 0;
  if (absl::StartsWith(text, "0x") || absl::StartsWith(text, "0X")) {
    return text.size() > 2 && absl::SimpleHexAtoi(text, &value);
  }
  return absl::SimpleAtoi(text, &value);
}

bool Has(absl::string_view text, Form form) {
  int integer = 0;
  double number = 0;
  switch (form) {
    case Form::kInteger:
      return absl::SimpleAtoi(text, &integer);
    case Form::kNumber:
      return absl::SimpleAtod(text, &number);
    case Form::kHexOrInteger:
      return IsHexOrInteger(text);
    case Form::kPciAddress:
      return ParsePciAddress(text).has_value();
    case Form::kPciClass:
      return absl::StartsWith(text, "0x") && IsHexOrInteger(text);
    case Form::kMask:
      return ParseCpuMask(text).has_value();
  }
  return false;
}

absl::Status CheckAttributes(const XmlElement& element) {
  for (const AttributeRule& rule : kRules) {
    if (element.name != rule.element) continue;
    const std::string* value = element.Find(rule.attribute);
    if (value == nullptr) {
      if (!rule.required) continue;
      return XmlError(element,
                      absl::StrCat("has no ", rule.attribute, ", which is ", Wanted(rule.form)));
    }
    // NCCL leaves what /sys does not tell empty.
    if (value->empty() && !rule.required) continue;
    if (!Has(*value, rule.form)) {
      return XmlError(element,
                      absl::StrCat(rule.attribute, " '", *value, "' is not ", Wanted(rule.form)));
    }
  }
  for (const auto& [name, attribute] : kRequiredTexts) {
    if (element.name == name && element.Find(attribute) == nullptr) {
      return XmlError(element, absl::StrCat("has no ", attribute));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTree(const XmlElement& element, const XmlElement* parent) {
  for (const Placement& place : kPlaces) {
    if (element.name != place.element) continue;
    const bool right = parent != nullptr &&
                       std::any_of(place.parents.begin(), place.parents.end(), [&](const char* p) {
                         return p != nullptr && parent->name == p;
                       });
    if (!right) {
      return XmlError(element, absl::StrCat("stands in <", parent->name,
                                            ">, where NCCL passes over it; its place is in <",
                                            place.parents[0], ">"));
    }
  }
  WEFT_RETURN_IF_ERROR(CheckAttributes(element));
  for (const XmlElement& child : element.children) {
    WEFT_RETURN_IF_ERROR(CheckTree(child, &element));
  }
  return absl::OkStatus();
}

absl::Status CannotWrite(const XmlElement& element, absl::string_view reason) {
  return absl::InvalidArgumentError(absl::StrCat("NCCL cannot read <", element.name, "> ", reason));
}

absl::Status CheckText(const XmlElement& element, absl::string_view text) {
  if (text.size() > kNcclTextMax) {
    return CannotWrite(
        element, absl::StrCat("with a text of ", text.size(), " bytes; at most ", kNcclTextMax));
  }
  for (char c : text) {
    if (absl::StrContains("\"'<>&", c) || static_cast<unsigned char>(c) < ' ') {
      return CannotWrite(element, absl::StrCat("with '", text, "'"));
    }
  }
  return absl::OkStatus();
}

absl::Status Write(const XmlElement& element, int indent, int& elements, std::string& out) {
  if (++elements > kNcclElementsMax) {
    return CannotWrite(element, absl::StrCat("as it is element ", elements, " of a file; at most ",
                                             kNcclElementsMax));
  }
  if (element.children.size() > kNcclChildrenMax) {
    return CannotWrite(element, absl::StrCat("with ", element.children.size(),
                                             " children; at most ", kNcclChildrenMax));
  }
  if (element.attributes.size() > kNcclAttributesMax) {
    return CannotWrite(element, absl::StrCat("with ", element.attributes.size(),
                                             " attributes; at most ", kNcclAttributesMax));
  }
  absl::StrAppend(&out, std::string(static_cast<size_t>(indent), ' '), "<", element.name);
  for (const auto& [name, value] : element.attributes) {
    WEFT_RETURN_IF_ERROR(CheckText(element, name));
    WEFT_RETURN_IF_ERROR(CheckText(element, value));
    absl::StrAppend(&out, " ", name, "=\"", value, "\"");
  }
  if (element.children.empty()) {
    absl::StrAppend(&out, "/>\n");
    return absl::OkStatus();
  }
  absl::StrAppend(&out, ">\n");
  for (const XmlElement& child : element.children) {
    WEFT_RETURN_IF_ERROR(Write(child, indent + 2, elements, out));
  }
  absl::StrAppend(&out, std::string(static_cast<size_t>(indent), ' '), "</", element.name, ">\n");
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<XmlElement> ParseNcclXml(absl::string_view text) {
  WEFT_ASSIGN_OR_RETURN(XmlElement system, ParseXml(text));
  if (system.name != "system") {
    return XmlError(system, system.name == "topology"
                                ? "is hwloc's format; NCCL's begins with <system version=\"1\">"
                                : "is not <system>, with which NCCL's topology files begin");
  }
  const std::string* version = system.Find("version");
  if (version == nullptr || *version != "1") {
    return XmlError(system, absl::StrCat("version ", version == nullptr ? "is missing" : *version,
                                         "; NCCL reads version 1"));
  }
  WEFT_RETURN_IF_ERROR(CheckTree(system, nullptr));
  return system;
}

absl::StatusOr<std::string> NcclXmlText(const XmlElement& system) {
  std::string out;
  int elements = 0;
  WEFT_RETURN_IF_ERROR(Write(system, 0, elements, out));
  return out;
}

bool SameXml(const XmlElement& a, const XmlElement& b) {
  return a.name == b.name && a.attributes == b.attributes &&
         std::equal(a.children.begin(), a.children.end(), b.children.begin(), b.children.end(),
                    SameXml);
}

}  // namespace weft::topology
