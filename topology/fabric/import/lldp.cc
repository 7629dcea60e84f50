// lldpctl's JSON (lldpd.github.io) of hosts, switches or both: "json", where a list of one is the
// item itself and named items are keys, and "json0", where everything is a list.
#include <fnmatch.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/text_lines.h"
#include "topology/fabric/import/import.h"
#include "topology/fabric/import/neighbor_views.h"

namespace weft::topology {
namespace {

using Json = nlohmann::ordered_json;

// One JSON text; a bigger one of hostile content could take gigabytes once parsed.
constexpr size_t kMaxSection = size_t{8} << 20;
constexpr int kMaxDepth = 24;

bool MatchesAny(const std::string& patterns, const std::string& name) {
  for (const std::string& pattern :
       std::vector<std::string>(absl::StrSplit(patterns, ',', absl::SkipEmpty()))) {
    if (fnmatch(pattern.c_str(), name.c_str(), 0) == 0) return true;
  }
  return false;
}

// The item of a list of one, or what is no list.
const Json* Single(const Json* value) {
  while (value != nullptr && value->is_array()) {
    value = value->empty() ? nullptr : &value->front();
  }
  return value;
}

const Json* Member(const Json* value, const char* key) {
  value = Single(value);
  if (value == nullptr || !value->is_object()) return nullptr;
  auto found = value->find(key);
  return found == value->end() ? nullptr : &*found;
}

// A text, or the text under "value", as json0 has it.
std::string TextOf(const Json* value) {
  value = Single(value);
  if (value != nullptr && value->is_object()) value = Single(Member(value, "value"));
  return value != nullptr && value->is_string() ? value->get<std::string>() : "";
}

// Items of a list, whose names are keys or under "name".
std::vector<std::pair<std::string, const Json*>> Named(const Json* value) {
  std::vector<std::pair<std::string, const Json*>> items;
  if (value == nullptr) return items;
  auto add = [&](const Json& item) {
    if (!item.is_object()) return;
    if (item.contains("id") || item.contains("name")) {
      items.emplace_back(TextOf(Member(&item, "name")), &item);
      return;
    }
    for (const auto& [key, content] : item.items()) items.emplace_back(key, &content);
  };
  if (value->is_array()) {
    for (const Json& item : *value) add(item);
  } else {
    add(*value);
  }
  return items;
}

// "100GbaseCR4 - 100 Gb/s over copper", "10GigBaseSR - R fiber over 850 nm optics", "1000BaseTFD -
// Four-pair Category 5": 0 where there is none.
Bandwidth SpeedOf(const Json* port) {
  std::string text = TextOf(Member(Member(port, "auto-negotiation"), "current"));
  size_t digits = 0;
  while (digits < text.size() && absl::ascii_isdigit(text[digits])) ++digits;
  int number = 0;
  if (!absl::SimpleAtoi(text.substr(0, digits), &number) || number <= 0) return {};
  absl::string_view rest = absl::string_view(text).substr(digits);
  if (absl::StartsWithIgnoreCase(rest, "gbase") || absl::StartsWithIgnoreCase(rest, "gigbase")) {
    return Bandwidth::GigabitsPerSecond(number);
  }
  if (absl::StartsWithIgnoreCase(rest, "base")) return Bandwidth::GigabitsPerSecond(number / 1e3);
  return {};
}

class LldpFile {
 public:
  LldpFile(absl::string_view text, std::string name, const ImportDefaults& defaults)
      : text_(text), name_(std::move(name)), defaults_(defaults) {}

  absl::StatusOr<Fabric> Read() {
    WEFT_RETURN_IF_ERROR(ReadSections());
    SetKinds();
    return views_.Build(defaults_, name_);
  }

  absl::StatusOr<std::map<std::string, std::string>> ReadSwitches() {
    WEFT_RETURN_IF_ERROR(ReadSections());
    std::map<std::string, std::string> out;
    for (const auto& [interface, node] : neighbors_) {
      const NodeInfo& info = nodes_[static_cast<size_t>(node)];
      if (info.announces && !info.forwards) continue;
      out.try_emplace(interface, Sanitised(info.name));
    }
    return out;
  }

 private:
  absl::Status ReadSections() {
    TextLines lines(text_, name_);
    absl::string_view line;
    std::string machine;
    const char* begin = text_.data();
    int begin_line = 1;
    while (lines.Next(line, /*comments=*/false)) {
      if (line.empty() || line[0] != '#') continue;
      WEFT_RETURN_IF_ERROR(ReadSection(machine, begin, line.data(), begin_line));
      machine = std::string(absl::StripAsciiWhitespace(line.substr(1)));
      begin = line.data() + line.size();
      begin_line = lines.number();
    }
    return ReadSection(machine, begin, text_.data() + text_.size(), begin_line);
  }

  template <typename... What>
  absl::Status Error(int line, const What&... what) const {
    return absl::InvalidArgumentError(absl::StrCat(name_, ":", line, ": ", what...));
  }

  // `line` is that of `begin`.
  absl::Status ReadSection(const std::string& machine, const char* begin, const char* end,
                           int line) {
    absl::string_view text =
        absl::StripAsciiWhitespace(absl::string_view(begin, static_cast<size_t>(end - begin)));
    if (text.empty()) return absl::OkStatus();
    line += static_cast<int>(std::count(begin, text.data(), '\n'));
    if (text.size() > kMaxSection) {
      return absl::ResourceExhaustedError(
          absl::StrCat(name_, ":", line, ": JSON of ", text.size(), " bytes; at most ", kMaxSection,
                       "; put each machine's output after a line \"# <machine>\""));
    }
    bool is_deep = false;
    auto limit = [&](int depth, Json::parse_event_t, Json&) {
      is_deep = is_deep || depth > kMaxDepth;
      return depth <= kMaxDepth;
    };
    Json root;
    try {
      root = Json::parse(text.begin(), text.end(), limit);
    } catch (const Json::parse_error& error) {
      auto at = std::min(error.byte, text.size());
      line += static_cast<int>(std::count(text.begin(), text.begin() + at, '\n'));
      return Error(line, "not valid JSON");
    } catch (const Json::exception& error) {  // a number too large for a double
      return Error(line, "not valid JSON: ", error.what());
    }
    if (is_deep) return Error(line, "JSON nested more than ", kMaxDepth, " deep");
    if (!root.is_object()) return Error(line, "this is no JSON object of lldpctl");
    if (root.contains("lldp")) {
      if (machine.empty()) {
        return Error(line,
                     "lldpctl does not say on which machine it ran: put a line \"# <machine>\" "
                     "before its output");
      }
      return ReadMachine(machine, root, line);
    }
    for (const auto& [name, output] : root.items()) {
      if (!output.is_object() || !output.contains("lldp")) {
        return Error(line, "\"", Excerpt(name), "\" holds no output of lldpctl: no \"lldp\"");
      }
      WEFT_RETURN_IF_ERROR(ReadMachine(name, output, line));
    }
    return absl::OkStatus();
  }

  absl::Status ReadMachine(const std::string& machine, const Json& output, int line) {
    if (MatchesAny(defaults_.ignore, machine)) return absl::OkStatus();
    int reporter = NodeOf(machine);
    nodes_[static_cast<size_t>(reporter)].reports = true;
    for (const auto& [interface, content] : Named(Member(Member(&output, "lldp"), "interface"))) {
      std::string via = TextOf(Member(content, "via"));
      if (!via.empty() && via != "LLDP" && via != "unknown") continue;
      const Json* chassis = Member(content, "chassis");
      std::vector<std::pair<std::string, const Json*>> neighbors = Named(chassis);
      if (neighbors.empty()) {
        return Error(line, Excerpt(machine), " interface ", Excerpt(interface),
                     ": a neighbour without chassis");
      }
      WEFT_RETURN_IF_ERROR(ReadNeighbor(reporter, interface, *content, neighbors[0], line));
    }
    return absl::OkStatus();
  }

  absl::Status ReadNeighbor(int reporter, const std::string& interface, const Json& content,
                            const std::pair<std::string, const Json*>& chassis, int line) {
    std::string name = chassis.first;
    if (name.empty()) name = TextOf(Member(chassis.second, "id"));
    if (name.empty()) {
      return Error(line, "interface ", Excerpt(interface), ": a neighbour without name and id");
    }
    if (MatchesAny(defaults_.ignore, name)) return absl::OkStatus();
    int other = NodeOf(name);
    const Json* capabilities = Member(chassis.second, "capability");
    if (capabilities != nullptr) {
      NodeInfo& info = nodes_[static_cast<size_t>(other)];
      info.announces = true;
      auto look = [&](const Json& capability) {
        std::string type = TextOf(Member(&capability, "type"));
        const Json* enabled = Member(&capability, "enabled");
        bool is_enabled = enabled != nullptr && enabled->is_boolean() && enabled->get<bool>();
        if (is_enabled && (type == "Bridge" || type == "Router")) info.forwards = true;
      };
      if (capabilities->is_array()) {
        for (const Json& capability : *capabilities) look(capability);
      } else {
        look(*capabilities);
      }
    }
    neighbors_.emplace_back(interface, other);
    const Json* port = Single(Member(&content, "port"));
    const Json* id = Member(port, "id");
    std::string type = TextOf(Member(id, "type"));
    std::string remote = TextOf(id);
    std::string description = TextOf(Member(port, "descr"));
    if (type != "ifname" && type != "local" && !description.empty()) remote = description;
    return views_.Report(reporter, other, {interface, remote, SpeedOf(port)},
                         absl::StrCat(name_, ":", line));
  }

  int NodeOf(const std::string& name) {
    int node = views_.Node(name);
    if (static_cast<size_t>(node) >= nodes_.size()) nodes_.resize(static_cast<size_t>(node) + 1);
    nodes_[static_cast<size_t>(node)].name = name;
    return node;
  }

  // Unless --hosts says: a host announces neither bridging nor routing. Where nothing is announced,
  // it is what ran lldpctl.
  void SetKinds() {
    for (size_t i = 0; i < nodes_.size(); ++i) {
      const NodeInfo& info = nodes_[i];
      bool is_host = !defaults_.hosts.empty() ? MatchesAny(defaults_.hosts, info.name)
                     : info.announces         ? !info.forwards
                                              : info.reports;
      views_.SetKind(static_cast<int>(i), is_host ? NodeKind::kHost : NodeKind::kSwitch);
    }
  }

  struct NodeInfo {
    std::string name;
    bool reports = false, announces = false, forwards = false;
  };

  absl::string_view text_;
  const std::string name_;
  const ImportDefaults& defaults_;
  NeighborViews views_;
  std::vector<NodeInfo> nodes_;                         // by their numbers in views_
  std::vector<std::pair<std::string, int>> neighbors_;  // interface, and the node at its other end
};

}  // namespace

absl::StatusOr<Fabric> ImportLldp(absl::string_view text, const std::string& name,
                                  const ImportDefaults& defaults) {
  return LldpFile(text, name, defaults).Read();
}

absl::StatusOr<std::map<std::string, std::string>> LldpSwitches(absl::string_view text,
                                                                const std::string& machine) {
  const ImportDefaults defaults;
  const std::string named = absl::StrCat("# ", Sanitised(machine), "\n", text);
  return LldpFile(named, absl::StrCat("lldpctl of ", machine), defaults).ReadSwitches();
}

}  // namespace weft::topology
