#include "base/status.h"
#include "base/text_lines.h"
#include "topology/fabric/import/import.h"
#include "topology/fabric/import/switch_tree.h"
#include "topology/fabric/name_list.h"

namespace weft::topology {
namespace {

// The first of `separators` that is not between brackets.
size_t FindOutside(absl::string_view line, absl::string_view separators) {
  int depth = 0;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '[') ++depth;
    if (line[i] == ']') --depth;
    if (depth == 0 && separators.find(line[i]) != absl::string_view::npos) return i;
  }
  return absl::string_view::npos;
}

// "a -> b", "a b" or "a,b"; the comma separates only where nothing else does.
bool Split(absl::string_view line, absl::string_view& below, absl::string_view& above) {
  size_t at = line.find("->");
  size_t size = 2;
  if (at == absl::string_view::npos) {
    size = 1;
    at = FindOutside(line, " \t");
    if (at == absl::string_view::npos) at = FindOutside(line, ",");
    if (at == absl::string_view::npos) return false;
  }
  below = absl::StripAsciiWhitespace(line.substr(0, at));
  above = absl::StripAsciiWhitespace(line.substr(at + size));
  return !below.empty() && !above.empty() && Words(below).size() == 1 && Words(above).size() == 1;
}

}  // namespace

absl::StatusOr<Fabric> ImportHostList(absl::string_view text, const std::string& name,
                                      const ImportDefaults& defaults) {
  TextLines lines(text, name);
  SwitchTree tree;
  absl::string_view line;
  while (lines.Next(line)) {
    if (line.empty()) continue;
    absl::string_view below;
    absl::string_view above;
    if (!Split(line, below, above)) {
      return lines.Error("\"", Excerpt(line), "\" is not of the form \"hosts -> switches\"");
    }
    absl::StatusOr<std::vector<std::string>> from = ExpandNames(below, kMaxNodes);
    if (!from.ok()) return Annotate(from.status(), lines.Where());
    absl::StatusOr<std::vector<std::string>> to = ExpandNames(above, kMaxNodes);
    if (!to.ok()) return Annotate(to.status(), lines.Where());
    for (const std::string& parent : *to) WEFT_RETURN_IF_ERROR(tree.Add(parent, *from, lines));
  }
  return tree.Build(defaults, name);
}

}  // namespace weft::topology
