// ibnetdiscover's topology file (infiniband-diags): a block for each node,
//
//   Switch  36 "S-<guid>"            # "<description>" enhanced port 0 lid 2 lmc 0
//   [1]     "H-<guid>"[1](<guid>)    # "node1 HCA-1" lid 4 4xHDR
//   Ca      1 "H-<guid>"             # "node1 HCA-1"
//   [1](<guid>)  "S-<guid>"[1]       # lid 4 lmc 0 "<description>" lid 2 4xHDR
//
// The first word of an adapter's description is its host; hosts that never set it keep the vendor's
// text or are all "localhost mlx5_0", and are then named after the guid. A host's NICs are its
// adapters' ports.
#include <array>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "base/text_lines.h"
#include "topology/fabric/import/import.h"
#include "topology/fabric/import/neighbor_views.h"

namespace weft::topology {
namespace {

// Data rate of a lane in Gb/s, after line coding (InfiniBand Architecture Specification, volume 2).
struct LaneRate {
  absl::string_view name;
  double gigabits;
};
constexpr auto kLaneRates = std::to_array<LaneRate>({{"SDR", 2},
                                                     {"DDR", 4},
                                                     {"QDR", 8},
                                                     {"FDR10", 10},
                                                     {"FDR", 14.0625 * 64 / 66},
                                                     {"EDR", 25},
                                                     {"HDR", 50},
                                                     {"NDR", 100},
                                                     {"XDR", 200}});

// "4xHDR"; 0 where it is nothing of the kind.
Bandwidth ParseRate(absl::string_view word) {
  std::pair<absl::string_view, absl::string_view> halves =
      absl::StrSplit(word, absl::MaxSplits('x', 1));
  int lanes = 0;
  if (!absl::SimpleAtoi(halves.first, &lanes) || lanes < 1 || lanes > 12) return {};
  for (const LaneRate& rate : kLaneRates) {
    if (halves.second == rate.name) return Bandwidth::GigabitsPerSecond(lanes * rate.gigabits);
  }
  return {};
}

// The text between the next two of `open` and `close`; `rest` is what follows.
std::optional<absl::string_view> Between(char open, char close, absl::string_view& rest) {
  size_t begin = rest.find(open);
  if (begin == absl::string_view::npos) return std::nullopt;
  size_t end = rest.find(close, begin + 1);
  if (end == absl::string_view::npos) return std::nullopt;
  absl::string_view text = rest.substr(begin + 1, end - begin - 1);
  rest = rest.substr(end + 1);
  return text;
}

struct Block {
  int line = 0;
  bool is_switch = false;
  bool is_ignored = false;  // switches' own aggregation engines, and routers
  std::string guid, description;
  std::string adapter;  // of a host: which of its adapters
  int node = -1;
};

struct Peer {
  size_t block = 0;
  std::string port, other, other_port;
  Bandwidth bandwidth;
  int line = 0;
};

class SubnetFile {
 public:
  SubnetFile(absl::string_view text, const std::string& name) : lines_(text, name) {}

  absl::StatusOr<Fabric> Read(const ImportDefaults& defaults) {
    absl::string_view line;
    while (lines_.Next(line, /*comments=*/false)) {
      if (line.empty() || line[0] == '#') continue;
      if (line[0] == '[') {
        WEFT_RETURN_IF_ERROR(ReadPeer(line));
      } else {
        WEFT_RETURN_IF_ERROR(ReadHeader(line));
      }
      if (blocks_.size() > kMaxNodes || peers_.size() > kMaxLinks) {
        return absl::ResourceExhaustedError(absl::StrCat(lines_.Where(), ": more than ", kMaxNodes,
                                                         " nodes or ", kMaxLinks, " ports"));
      }
    }
    NameNodes();
    for (const Peer& peer : peers_) WEFT_RETURN_IF_ERROR(Report(peer));
    return views_.Build(defaults, lines_.file());
  }

 private:
  absl::Status ReadHeader(absl::string_view line) {
    std::vector<absl::string_view> words = Words(line.substr(0, line.find('#')));
    bool is_switch = !words.empty() && words[0] == "Switch";
    bool is_router = !words.empty() && words[0] == "Rt";
    if (!is_switch && !is_router && (words.empty() || words[0] != "Ca")) {
      // "vendid=0x2c9", "Non-Chassis Nodes", "Chassis 1 (guid 0x...)", "Spine Nodes".
      if (absl::StrContains(line, '=') || absl::StrContains(line, "Nodes") ||
          absl::StartsWith(line, "Chassis")) {
        return absl::OkStatus();
      }
      return lines_.Error("\"", Excerpt(line), "\" begins with none of Switch, Ca, Rt and [port]");
    }
    Block block;
    block.line = lines_.number();
    block.is_switch = is_switch;
    absl::string_view rest = line;
    std::optional<absl::string_view> id = Between('"', '"', rest);
    if (!id.has_value() || id->size() < 3) {
      return lines_.Error(words[0], " without its guid in quotes");
    }
    block.guid = std::string(*id);
    block.description = std::string(Between('"', '"', rest).value_or(""));
    block.is_ignored = is_router || absl::StrContains(block.description, "Aggregation Node");
    if (!by_guid_.try_emplace(block.guid, blocks_.size()).second) {
      return lines_.Error(Excerpt(block.guid), " has two blocks");
    }
    blocks_.push_back(std::move(block));
    return absl::OkStatus();
  }

  absl::Status ReadPeer(absl::string_view line) {
    if (blocks_.empty()) return lines_.Error("a port before the first Switch or Ca");
    Peer peer;
    peer.block = blocks_.size() - 1;
    peer.line = lines_.number();
    absl::string_view rest = line.substr(0, line.find('#'));
    std::optional<absl::string_view> port = Between('[', ']', rest);
    std::optional<absl::string_view> other = Between('"', '"', rest);
    std::optional<absl::string_view> other_port = Between('[', ']', rest);
    if (!port.has_value() || !other.has_value() || !other_port.has_value()) {
      return lines_.Error("\"", Excerpt(line), "\" is not of the form [port] \"guid\"[port]");
    }
    peer.port = std::string(port->substr(0, 32));
    peer.other = std::string(*other);
    peer.other_port = std::string(other_port->substr(0, 32));
    std::vector<absl::string_view> words = Words(line);
    peer.bandwidth = ParseRate(words.back());
    peers_.push_back(std::move(peer));
    return absl::OkStatus();
  }

  // Switches by description, adapters by host; a name that is not the node's own gets the guid.
  void NameNodes() {
    absl::flat_hash_map<std::string, int> uses, adapters;
    for (Block& block : blocks_) {
      if (!block.is_switch) ++adapters[block.description];
      if (!block.is_switch) continue;
      if (absl::StartsWith(block.description, "MF0;")) block.description.erase(0, 4);
      ++uses[Sanitised(block.description)];
    }
    for (Block& block : blocks_) {
      if (block.is_ignored) continue;
      std::string name = block.description;
      if (block.is_switch) {
        if (name.empty() || uses[Sanitised(name)] > 1) {
          absl::StrAppend(&name, name.empty() ? "" : ":", block.guid);
        }
      } else {
        std::pair<std::string, std::string> words =
            absl::StrSplit(block.description, absl::MaxSplits(' ', 1));
        bool is_vendors = words.first.empty() || absl::StartsWith(words.first, "MT") ||
                          words.first == "Mellanox" || uses.contains(Sanitised(words.first));
        // One host has no two adapters of one name.
        bool is_shared = !words.second.empty() && adapters[block.description] > 1;
        name = is_vendors || is_shared ? block.guid : words.first;
        block.adapter = words.second.empty() ? block.guid : words.second;
      }
      block.node = views_.Node(name);
      views_.SetKind(block.node, block.is_switch ? NodeKind::kSwitch : NodeKind::kHost);
    }
  }

  static std::string PortName(const Block& block, const std::string& port) {
    return block.is_switch ? port : absl::StrCat(block.adapter, "/", port);
  }

  absl::Status Report(const Peer& peer) {
    const Block& block = blocks_[peer.block];
    std::string where = absl::StrCat(lines_.file(), ":", peer.line);
    auto found = by_guid_.find(peer.other);
    if (found == by_guid_.end()) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": neighbour ", Excerpt(peer.other),
                                                     " has no block of its own in the file"));
    }
    const Block& other = blocks_[found->second];
    if (block.is_ignored || other.is_ignored) return absl::OkStatus();
    return views_.Report(
        block.node, other.node,
        {PortName(block, peer.port), PortName(other, peer.other_port), peer.bandwidth}, where);
  }

  TextLines lines_;
  std::vector<Block> blocks_;
  absl::flat_hash_map<std::string, size_t> by_guid_;
  std::vector<Peer> peers_;
  NeighborViews views_;
};

}  // namespace

absl::StatusOr<Fabric> ImportIbnetdiscover(absl::string_view text, const std::string& name,
                                           const ImportDefaults& defaults) {
  return SubnetFile(text, name).Read(defaults);
}

}  // namespace weft::topology
