// Slurm's topology.conf for topology/tree (slurm.schedmd.com/topology.conf.html): keys in any case,
// lists of names as in name_list.h, '\' at a line's end continues it, also in a list behind ','.
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/text_lines.h"
#include "topology/fabric/import/import.h"
#include "topology/fabric/import/switch_tree.h"
#include "topology/fabric/name_list.h"

namespace weft::topology {
namespace {

struct Entry {
  std::string name;
  std::vector<std::string> below;
  bool has_nodes = false, has_switches = false;
};

absl::Status ReadPair(absl::string_view word, const TextLines& lines, Entry& entry) {
  std::pair<absl::string_view, absl::string_view> pair =
      absl::StrSplit(word, absl::MaxSplits('=', 1));
  auto [key, value] = pair;
  if (value.empty()) return lines.Error("\"", Excerpt(word), "\" is not of the form key=value");
  if (absl::EqualsIgnoreCase(key, "LinkSpeed")) return absl::OkStatus();
  if (absl::EqualsIgnoreCase(key, "SwitchName")) {
    if (!entry.name.empty()) return lines.Error("SwitchName stands twice in one line");
    entry.name = std::string(value);
    return absl::OkStatus();
  }
  bool is_nodes = absl::EqualsIgnoreCase(key, "Nodes");
  if (!is_nodes && !absl::EqualsIgnoreCase(key, "Switches")) {
    return lines.Error("\"", Excerpt(key), "\" is none of SwitchName, Nodes, Switches, LinkSpeed",
                       absl::StartsWithIgnoreCase(key, "Block")
                           ? "; topology/block says nothing of the network"
                           : "");
  }
  absl::StatusOr<std::vector<std::string>> names = ExpandNames(value, kMaxNodes);
  if (!names.ok()) return Annotate(names.status(), lines.Where());
  entry.below.insert(entry.below.end(), names->begin(), names->end());
  (is_nodes ? entry.has_nodes : entry.has_switches) = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Fabric> ImportSlurm(absl::string_view text, const std::string& name,
                                   const ImportDefaults& defaults) {
  TextLines lines(text, name);
  SwitchTree tree;
  absl::flat_hash_set<std::string> nodes;
  absl::flat_hash_set<std::string> switches;
  absl::string_view line;
  std::string whole;  // with the lines that continue it
  while (lines.Next(line)) {
    absl::StrAppend(&whole, whole.empty() || whole.back() == ',' ? "" : " ", line);
    if (absl::EndsWith(whole, "\\")) {
      whole.pop_back();
      absl::StripTrailingAsciiWhitespace(&whole);
      if (!lines.is_done()) continue;
    }
    std::string statement = std::exchange(whole, "");
    std::vector<absl::string_view> words = Words(statement);
    if (words.empty()) continue;
    Entry entry;
    for (absl::string_view word : words) WEFT_RETURN_IF_ERROR(ReadPair(word, lines, entry));
    if (entry.name.empty()) return lines.Error("a line without SwitchName=");
    if (!entry.has_nodes && !entry.has_switches) {
      return lines.Error("switch ", Excerpt(entry.name), " has neither Nodes= nor Switches=");
    }
    if (!switches.insert(entry.name).second) {
      return lines.Error("switch ", Excerpt(entry.name), " is described twice");
    }
    if (entry.has_nodes && !entry.has_switches)
      nodes.insert(entry.below.begin(), entry.below.end());
    WEFT_RETURN_IF_ERROR(tree.Add(entry.name, entry.below, lines));
  }
  for (const std::string& node : nodes) {
    if (!switches.contains(node)) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", Excerpt(node), " is a node and a switch"));
  }
  return tree.Build(defaults, name, switches);
}

}  // namespace weft::topology
