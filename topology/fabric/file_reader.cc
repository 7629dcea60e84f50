#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status.h"
#include "topology/fabric/faults.h"
#include "topology/fabric/file.h"
#include "topology/fabric/generator.h"
#include "topology/fabric/name_list.h"
#include "topology/fabric/toml_values.h"

namespace weft::topology {
namespace {

constexpr int kMaxTier = 16;

// Numbers of cables and switches that do not say otherwise.
struct Defaults {
  Bandwidth bandwidth = Bandwidth::GigabitsPerSecond(400);
  absl::Duration delay = absl::Nanoseconds(500);
  Bytes buffer;
  absl::Duration latency;
  Bytes switch_buffer;
};

class Reader : private TomlValues {
 public:
  explicit Reader(const std::string& file) : TomlValues(file) {}

  absl::StatusOr<Fabric> Read(const toml::value& root) {
    WEFT_RETURN_IF_ERROR(
        CheckKeys(root, "a fabric file", {"defaults", "generate", "nodes", "cables", "faults"}));
    if (const toml::value* table = Get(root, "defaults")) {
      WEFT_RETURN_IF_ERROR(ReadDefaults(*table));
    }
    if (const toml::value* table = Get(root, "generate")) WEFT_RETURN_IF_ERROR(Generate(*table));
    WEFT_RETURN_IF_ERROR(ForEachTable(root, "nodes", &Reader::ReadNodes));
    WEFT_RETURN_IF_ERROR(ForEachTable(root, "cables", &Reader::ReadCables));
    absl::StatusOr<Fabric> fabric = std::move(builder_).Build();
    if (!fabric.ok()) return Annotate(fabric.status(), file());
    if (const toml::value* table = Get(root, "faults")) {
      WEFT_RETURN_IF_ERROR(CheckKeys(*table, "[faults]", {"down", "degraded"}));
      WEFT_RETURN_IF_ERROR(ReadDegraded(*table, *fabric));
      WEFT_RETURN_IF_ERROR(ReadDown(*table, *fabric));
    }
    return fabric;
  }

 private:
  using TomlValues::Read;

  absl::Status ForEachTable(const toml::value& root, const std::string& key,
                            absl::Status (Reader::*read)(const toml::value&)) {
    const toml::value* list = Get(root, key);
    if (list == nullptr) return absl::OkStatus();
    if (!list->is_array()) return Error(*list, key, " is a list: write [[", key, "]]");
    for (const toml::value& table : list->as_array()) {
      WEFT_RETURN_IF_ERROR((this->*read)(table));
    }
    return absl::OkStatus();
  }

  absl::Status ReadDefaults(const toml::value& table) {
    WEFT_RETURN_IF_ERROR(CheckKeys(table, "[defaults]",
                                   {"bandwidth", "delay", "buffer", "latency", "switch_buffer"}));
    WEFT_RETURN_IF_ERROR(Read(table, "bandwidth", defaults_.bandwidth));
    WEFT_RETURN_IF_ERROR(Read(table, "delay", defaults_.delay));
    WEFT_RETURN_IF_ERROR(Read(table, "buffer", defaults_.buffer));
    WEFT_RETURN_IF_ERROR(Read(table, "latency", defaults_.latency));
    WEFT_RETURN_IF_ERROR(Read(table, "switch_buffer", defaults_.switch_buffer));
    for (const auto& [key, value] : table.as_table()) {
      WEFT_ASSIGN_OR_RETURN(GeneratorSetting setting, Setting(key, value));
      stated_.push_back(std::move(setting));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<GeneratorSetting> Setting(const std::string& key, const toml::value& value) const {
    GeneratorSetting setting{key, "", Where(value)};
    if (value.is_string()) {
      setting.value = value.as_string().str;
    } else if (value.is_integer()) {
      setting.value = absl::StrCat(value.as_integer());
    } else if (value.is_floating()) {
      setting.value = absl::StrFormat("%.17g", value.as_floating());
    } else {
      return Error(value, key.substr(0, 64), " must be a number or a text");
    }
    return setting;
  }

  // The generator's own settings come after those that [defaults] states.
  absl::Status Generate(const toml::value& table) {
    const toml::value* type = table.is_table() ? Get(table, "type") : nullptr;
    if (type == nullptr) {
      return Error(table,
                   "generate must be a table with a type, as { type = \"leaf-spine\", leaves = 4 "
                   "}; types: ",
                   absl::StrJoin(GeneratorNames(), ", "));
    }
    WEFT_ASSIGN_OR_RETURN(std::string name, Text(*type, "type"));
    std::vector<GeneratorSetting> settings = stated_;
    for (const auto& [key, value] : table.as_table()) {
      if (key == "type") continue;
      WEFT_ASSIGN_OR_RETURN(GeneratorSetting setting, Setting(key, value));
      settings.push_back(std::move(setting));
    }
    WEFT_ASSIGN_OR_RETURN(ClosSpec spec, GeneratorSpec(name, settings, Where(*type)));
    absl::StatusOr<Fabric> fabric = BuildClos(spec);
    if (!fabric.ok()) return At(table, fabric.status());
    for (NodeId host : fabric->hosts()) next_nic_[host] = fabric->nics(host);
    builder_ = FabricBuilder(*std::move(fabric));
    return absl::OkStatus();
  }

  absl::Status ReadNodes(const toml::value& table) {
    WEFT_RETURN_IF_ERROR(CheckKeys(
        table, "[[nodes]]", {"hosts", "switches", "tier", "pod", "plane", "latency", "buffer"}));
    const toml::value* hosts = Get(table, "hosts");
    const toml::value* switches = Get(table, "switches");
    if ((hosts == nullptr) == (switches == nullptr)) {
      return Error(table, "[[nodes]] needs either hosts or switches");
    }
    constexpr int kMost = std::numeric_limits<int>::max();
    FabricNode node;
    if (hosts != nullptr) {
      if (const toml::value* tier = Get(table, "tier")) {
        return Error(*tier, "tier is of switches; hosts are always below");
      }
    } else {
      node.kind = NodeKind::kSwitch;
      node.tier = 1;
      node.latency = defaults_.latency;
      node.buffer = defaults_.switch_buffer;
    }
    WEFT_RETURN_IF_ERROR(Read(table, "tier", 0, kMaxTier, node.tier));
    WEFT_RETURN_IF_ERROR(Read(table, "latency", node.latency));
    WEFT_RETURN_IF_ERROR(Read(table, "buffer", node.buffer));
    WEFT_RETURN_IF_ERROR(Read(table, "pod", 0, kMost, node.pod));
    WEFT_RETURN_IF_ERROR(Read(table, "plane", 0, kMost, node.plane));
    const toml::value& names = hosts != nullptr ? *hosts : *switches;
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> list, Names(names));
    for (std::string& name : list) {
      node.name = std::move(name);
      absl::Status status = builder_.Add(node).status();
      if (!status.ok()) return At(names, status);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> Names(const toml::value& value) const {
    WEFT_ASSIGN_OR_RETURN(std::string text, Text(value, "a list of names"));
    absl::StatusOr<std::vector<std::string>> names = ExpandNames(text, kMaxNodes);
    if (!names.ok()) return At(value, names.status());
    return names;
  }

  absl::StatusOr<std::vector<NodeId>> Nodes(const toml::value& value) const {
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> names, Names(value));
    std::vector<NodeId> nodes;
    nodes.reserve(names.size());
    for (const std::string& name : names) {
      absl::StatusOr<NodeId> node = builder_.Find(name);
      if (!node.ok()) return At(value, node.status());
      nodes.push_back(*node);
    }
    return nodes;
  }

  absl::Status ReadCables(const toml::value& table) {
    WEFT_RETURN_IF_ERROR(CheckKeys(
        table, "[[cables]]", {"pairs", "bandwidth", "delay", "buffer", "reverse_buffer", "count"}));
    FabricBuilder::Cable cable{defaults_.bandwidth, defaults_.delay, defaults_.buffer};
    int count = 1;
    WEFT_RETURN_IF_ERROR(Read(table, "bandwidth", cable.bandwidth));
    WEFT_RETURN_IF_ERROR(Read(table, "delay", cable.delay));
    WEFT_RETURN_IF_ERROR(Read(table, "buffer", cable.buffer));
    WEFT_RETURN_IF_ERROR(Read(table, "count", 1, 1024, count));
    if (Get(table, "reverse_buffer") != nullptr) {
      WEFT_RETURN_IF_ERROR(Read(table, "reverse_buffer", cable.reverse_buffer.emplace()));
    }
    const toml::value* pairs = Get(table, "pairs");
    if (pairs == nullptr || !pairs->is_array()) {
      return Error(pairs == nullptr ? table : *pairs,
                   "[[cables]] needs pairs, a list as [[\"h[0-3]\", \"leaf0\"]]");
    }
    for (const toml::value& pair : pairs->as_array()) {
      WEFT_RETURN_IF_ERROR(ReadPair(pair, cable, count));
    }
    return absl::OkStatus();
  }

  // Every node of the first list with every one of the second, the second running fastest.
  absl::Status ReadPair(const toml::value& pair, const FabricBuilder::Cable& cable, int count) {
    if (!pair.is_array() || pair.as_array().size() < 2 || pair.as_array().size() > 3) {
      return Error(pair, "a pair must be [\"from\", \"to\"] or [\"from\", \"to\", NIC]");
    }
    const toml::array& items = pair.as_array();
    WEFT_ASSIGN_OR_RETURN(std::vector<NodeId> from, Nodes(items[0]));
    WEFT_ASSIGN_OR_RETURN(std::vector<NodeId> to, Nodes(items[1]));
    size_t total = from.size() * to.size();
    if (total > kMaxLinks / 2) {
      return At(pair, absl::ResourceExhaustedError(
                          absl::StrCat("these are ", total, " cables; at most ", kMaxLinks / 2)));
    }
    std::vector<int> nics(total, -1);
    if (items.size() == 3) WEFT_RETURN_IF_ERROR(ReadNics(items[2], nics));
    for (size_t i = 0; i < total; ++i) {
      NodeId a = from[i / to.size()];
      NodeId b = to[i % to.size()];
      for (int copy = 0; copy < count; ++copy) {
        absl::Status status = Connect(a, b, cable, nics[i]);
        if (!status.ok()) return At(pair, status);
      }
    }
    return absl::OkStatus();
  }

  // nic -1: the next of the host that has none yet.
  absl::Status Connect(NodeId a, NodeId b, FabricBuilder::Cable cable, int nic) {
    bool a_is_host = builder_.node(a).kind == NodeKind::kHost;
    bool has_host = a_is_host || builder_.node(b).kind == NodeKind::kHost;
    if (has_host) {
      int& next = next_nic_[a_is_host ? a : b];
      cable.nic = nic >= 0 ? nic : next;
      next = std::max(next, cable.nic + 1);
    } else if (nic >= 0) {
      return absl::InvalidArgumentError(absl::StrCat("a NIC is of a host, and neither ",
                                                     builder_.node(a).name, " nor ",
                                                     builder_.node(b).name, " is one"));
    }
    return builder_.Connect(a, b, cable).status();
  }

  // One number for all cables, or a text with one for each.
  absl::Status ReadNics(const toml::value& value, std::vector<int>& nics) const {
    if (value.is_integer() && value.as_integer() >= 0 && value.as_integer() < kMaxNics) {
      std::fill(nics.begin(), nics.end(), static_cast<int>(value.as_integer()));
      return absl::OkStatus();
    }
    if (!value.is_string()) {
      return Error(value, "a NIC must be a number from 0 to ", kMaxNics - 1,
                   ", or a text with one for each cable as \"0-7\"");
    }
    absl::StatusOr<std::vector<std::string>> words =
        ExpandNames(absl::StrCat("[", value.as_string().str, "]"), kMaxNodes);
    if (!words.ok()) return At(value, words.status());
    if (words->size() != nics.size()) {
      return Error(value, words->size(), " NICs for ", nics.size(), " cables");
    }
    for (size_t i = 0; i < nics.size(); ++i) {
      if (!absl::SimpleAtoi((*words)[i], &nics[i]) || nics[i] < 0 || nics[i] >= kMaxNics) {
        return Error(value, "NIC ", (*words)[i], "; they are numbered from 0 to ", kMaxNics - 1);
      }
    }
    return absl::OkStatus();
  }

  // The cables that `name` means; all names together may mean each cable a few times, no more.
  absl::StatusOr<std::vector<LinkId>> Faulty(const toml::value& at, const std::string& name,
                                             const Fabric& fabric) {
    absl::StatusOr<std::vector<LinkId>> cables = CablesNamed(name, fabric);
    if (!cables.ok()) return At(at, cables.status());
    faulty_ += static_cast<int64_t>(cables->size());
    if (faulty_ > 2 * kMaxLinks)
      return Error(at, "the faults name more than ", 2 * kMaxLinks, " cables");
    return cables;
  }

  absl::Status ReadDegraded(const toml::value& faults, Fabric& fabric) {
    const toml::value* table = Get(faults, "degraded");
    if (table == nullptr) return absl::OkStatus();
    if (!table->is_table()) {
      return Error(*table, "degraded must be a table as { \"leaf0>spine1\" = \"100Gbps\" }");
    }
    absl::flat_hash_set<LinkId> seen;
    for (const auto& [key, value] : table->as_table()) {
      Bandwidth bandwidth;
      WEFT_RETURN_IF_ERROR(Read(*table, key, bandwidth));
      if (bandwidth > kMaxBandwidth) {
        return Error(value, ToString(bandwidth), " is above ", ToString(kMaxBandwidth));
      }
      WEFT_ASSIGN_OR_RETURN(std::vector<LinkId> cables, Faulty(value, key, fabric));
      for (LinkId cable : cables) {
        if (!seen.insert(cable).second) {
          return Error(value, "degraded names ", fabric.Name(cable), " twice");
        }
        fabric.SetBandwidth(cable, bandwidth);
      }
    }
    return absl::OkStatus();
  }

  absl::Status ReadDown(const toml::value& faults, Fabric& fabric) {
    const toml::value* list = Get(faults, "down");
    if (list == nullptr) return absl::OkStatus();
    if (!list->is_array()) return Error(*list, "down must be a list as [\"leaf0>spine1\"]");
    for (const toml::value& value : list->as_array()) {
      WEFT_ASSIGN_OR_RETURN(std::string name, Text(value, "what is down"));
      WEFT_ASSIGN_OR_RETURN(std::vector<LinkId> cables, Faulty(value, name, fabric));
      for (LinkId cable : cables) fabric.SetUp(cable, false);
    }
    return absl::OkStatus();
  }

  Defaults defaults_;
  std::vector<GeneratorSetting> stated_;  // of [defaults], for the generator
  FabricBuilder builder_;
  int64_t faulty_ = 0;                         // cables that [faults] named so far
  absl::flat_hash_map<NodeId, int> next_nic_;  // of a host: its highest NIC + 1
};

}  // namespace

absl::StatusOr<Fabric> ReadFabric(absl::string_view text, const std::string& name) {
  WEFT_ASSIGN_OR_RETURN(toml::value root, ParseToml(text, name));
  return Reader(name).Read(root);
}

}  // namespace weft::topology
