#include "topology/job/mesh_text.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace weft::topology {
namespace {

bool Contains(absl::Span<const Axis> axes, Axis axis) {
  return std::find(axes.begin(), axes.end(), axis) != axes.end();
}

absl::StatusOr<std::vector<Axis>> ParseNesting(absl::string_view text) {
  std::vector<Axis> axes;
  for (absl::string_view name : absl::StrSplit(text, '-')) {
    WEFT_ASSIGN_OR_RETURN(Axis axis, ParseAxis(name));
    if (Contains(axes, axis)) {
      return absl::InvalidArgumentError(absl::StrCat(ToString(axis), " is named twice"));
    }
    axes.push_back(axis);
  }
  return axes;
}

// In the order of the entries that give their sizes.
std::vector<Axis> NamedAxes(const Section& section) {
  std::vector<Axis> axes;
  for (const KeyValue& entry : section.entries) {
    absl::StatusOr<Axis> axis = ParseAxis(entry.key);
    if (axis.ok() && !Contains(axes, *axis)) axes.push_back(*axis);
  }
  return axes;
}

// Where the last entry of a key stands; -1: nowhere.
int LastEntry(const Section& section, absl::string_view key) {
  int last = -1;
  for (size_t i = 0; i < section.entries.size(); ++i) {
    if (section.entries[i].key == key) last = static_cast<int>(i);
  }
  return last;
}

// "tp=8", or "tp8" as the same.
absl::StatusOr<KeyValue> ParsePart(absl::string_view part, const std::string& origin) {
  size_t key = 0, value = 0;
  if (part.find('=') != absl::string_view::npos) {
    key = part.find('=');
    value = key + 1;
  } else {
    while (key < part.size() && absl::ascii_isalpha(part[key])) ++key;
    value = key;
  }
  KeyValue entry{std::string(absl::StripAsciiWhitespace(part.substr(0, key))),
                 std::string(absl::StripAsciiWhitespace(part.substr(value))), origin};
  if (entry.key.empty() || entry.value.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(origin, ": '", part, "' is no axis and its size, as tp8 or tp=8"));
  }
  return entry;
}

}  // namespace

absl::StatusOr<Section> MeshSection(absl::string_view text, const std::string& origin) {
  Section section{"layout", origin, {}};
  std::vector<Axis> named;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    WEFT_ASSIGN_OR_RETURN(KeyValue entry, ParsePart(absl::StripAsciiWhitespace(part), origin));
    absl::StatusOr<Axis> axis = ParseAxis(entry.key);
    if (axis.ok() && Contains(named, *axis)) {
      return absl::InvalidArgumentError(absl::StrCat(origin, ": '", part, "' names an axis again"));
    }
    if (axis.ok()) named.push_back(*axis);
    section.entries.push_back(std::move(entry));
  }
  return section;
}

absl::StatusOr<Mesh> ReadMesh(const Section& section, absl::Span<const Axis> order) {
  KeyReader reader(section);
  std::array<int, kAxisCount> sizes{1, 1, 1, 1, 1};  // by Axis
  for (Axis axis : kDataInsidePipeline) {
    int& size = sizes[static_cast<size_t>(axis)];
    absl::string_view first = Brief(axis), last = ToString(axis);  // of the two, the latter counts
    if (LastEntry(section, first) > LastEntry(section, last)) std::swap(first, last);
    reader.Read(first, size, 1, kMeshRanksMax);
    reader.Read(last, size, 1, kMeshRanksMax);
  }
  std::string nesting_text;
  reader.Read("nesting", nesting_text);
  std::vector<Axis> nesting;
  reader.ReadWith("nesting", nesting, ParseNesting);
  WEFT_RETURN_IF_ERROR(reader.Done());

  const std::vector<Axis> named = NamedAxes(section);
  if (!nesting_text.empty()) {
    for (Axis axis : named) {
      if (Contains(nesting, axis) || sizes[static_cast<size_t>(axis)] == 1) continue;
      return absl::InvalidArgumentError(absl::StrCat(section.origin, ": nesting = ", nesting_text,
                                                     " leaves out ", ToString(axis)));
    }
  } else {
    for (Axis axis : order.empty() ? absl::MakeConstSpan(named) : order) {
      if (Contains(named, axis)) nesting.push_back(axis);
    }
  }
  std::vector<AxisSize> axes;
  for (Axis axis : nesting) axes.push_back({axis, sizes[static_cast<size_t>(axis)]});
  absl::StatusOr<Mesh> mesh = Mesh::Create(axes);
  return mesh.ok() ? mesh : Annotate(mesh.status(), section.origin);
}

absl::StatusOr<AxisSet> ParseAxes(absl::string_view text, absl::string_view separators) {
  AxisSet axes;
  for (absl::string_view name : absl::StrSplit(text, absl::ByAnyChar(separators))) {
    WEFT_ASSIGN_OR_RETURN(Axis axis, ParseAxis(name));
    axes.Add(axis);
  }
  return axes;
}

absl::StatusOr<Mesh> ParseMesh(absl::string_view text) {
  WEFT_ASSIGN_OR_RETURN(Section section, MeshSection(text, absl::StrCat("layout '", text, "'")));
  return ReadMesh(section, kAsWritten);
}

}  // namespace weft::topology
