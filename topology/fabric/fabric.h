// A fabric: hosts, switches and the cables between them, as a graph. All code that knows the
// network works on it: equal-cost paths (routes.h), switch hashes and the path planner (../ecmp),
// rank order (../order), the simulator (../sim), pictures and diagnosis.
//
// A cable is two links, one a direction, each the other's `reverse`. A host forwards nothing; it
// has NICs, numbered from 0, and a NIC has a port or several (dual-ToR: two ports to two switches,
// one address). GPUs and ranks are not here: `rails` of a host are its NICs.
#ifndef WEFT_TOPOLOGY_FABRIC_FABRIC_H_
#define WEFT_TOPOLOGY_FABRIC_FABRIC_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/ids.h"
#include "base/units.h"

namespace weft::topology {

// Bounds of what a fabric may hold, so that no file can ask for gigabytes: room for 100,000 hosts
// in three tiers (110,000 nodes, 600,000 links), twice over.
constexpr int kMaxNodes = 1 << 18;
constexpr int kMaxLinks = 1 << 21;  // both directions counted
constexpr int kMaxNics = 256;       // of one host
// Beyond these a number in a file is a mistake.
constexpr absl::Duration kMaxDelay = absl::Seconds(1);
constexpr Bandwidth kMaxBandwidth = Bandwidth::GigabitsPerSecond(1e8);

enum class NodeKind : uint8_t { kHost, kSwitch };

struct FabricNode {
  std::string name;  // unique in the fabric: "h12", "leaf3", "spine0"
  NodeKind kind = NodeKind::kHost;
  int tier = 0;            // 0: host, 1: leaf (ToR), 2: spine (aggregation), 3: core
  int pod = -1;            // of a three-tier fabric; -1: none
  int plane = -1;          // of a multi-plane fabric; -1: none
  absl::Duration latency;  // a switch's own: from the last bit in to the queue of the port out
  Bytes buffer;            // a switch's shared packet memory; 0: not stated
};

struct FabricLink {
  NodeId source;
  NodeId target;
  Bandwidth bandwidth;  // now; `nominal` is what it was built with
  Bandwidth nominal;
  absl::Duration delay;  // propagation, one way
  Bytes buffer;          // of the queue at `source` that feeds it; 0: not stated
  LinkId reverse;
  int nic = -1;    // the NIC of the host at either end; -1 between switches
  bool up = true;  // both directions of a cable go down together
};

// Where a flow begins or ends.
struct Endpoint {
  NodeId host;
  int nic = 0;
  auto operator<=>(const Endpoint&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const Endpoint& endpoint) {
    return H::combine(std::move(h), endpoint.host.value(), endpoint.nic);
  }
};

// Nodes and links are numbered densely from 0 in the order in which they were added. Immutable but
// for the state of its links; const calls are thread-safe.
class Fabric {
 public:
  int nodes() const { return static_cast<int>(nodes_.size()); }
  int links() const { return static_cast<int>(links_.size()); }
  const FabricNode& node(NodeId id) const { return nodes_[id.index()]; }
  const FabricLink& link(LinkId id) const { return links_[id.index()]; }
  absl::Span<const NodeId> hosts() const { return hosts_; }        // in order of id
  absl::Span<const NodeId> switches() const { return switches_; }  // likewise
  // Links that leave `node`, up or not, in order of id; a host's by NIC, then id.
  absl::Span<const LinkId> LinksFrom(NodeId node) const;
  // Ports of a NIC: links from its host. Empty: there is no such NIC.
  absl::Span<const LinkId> Ports(Endpoint endpoint) const;
  int nics(NodeId host) const;
  // Every NIC of every host, by host, then NIC.
  std::vector<Endpoint> Endpoints() const;
  int endpoints() const { return static_cast<int>(port_begin_.size()); }
  // Where one stands in Endpoints(). The endpoint must exist.
  int IndexOf(Endpoint endpoint) const {
    return static_cast<int>(endpoint_begin_[endpoint.host.index()]) + endpoint.nic;
  }

  // NotFound names the nearest name that there is.
  absl::StatusOr<NodeId> Find(absl::string_view name) const;
  // The first link between two nodes. NotFound: there is none.
  absl::StatusOr<LinkId> FindLink(NodeId source, NodeId target) const;
  // "leaf3>spine0", with "#1" for a second cable between the same two.
  std::string Name(LinkId link) const;

  // Faults: both directions of the cable. `generation` counts such changes, so that code that
  // derived something from the fabric (routes) knows that it is old.
  void SetUp(LinkId link, bool up);
  void SetBandwidth(LinkId link, Bandwidth bandwidth);  // degraded: > 0
  uint64_t generation() const { return generation_; }

 private:
  friend class FabricBuilder;
  std::vector<FabricNode> nodes_;
  std::vector<FabricLink> links_;
  std::vector<NodeId> hosts_, switches_;
  std::vector<uint32_t> out_begin_;  // [node + 1] into out_; host's links sorted by NIC
  std::vector<LinkId> out_;
  std::vector<uint32_t> endpoint_begin_;  // [node + 1]: a host's NICs among all NICs
  std::vector<uint32_t> port_begin_;      // [endpoint] into out_
  absl::flat_hash_map<std::string, NodeId> by_name_;
  uint64_t generation_ = 0;
};

class FabricBuilder {
 public:
  FabricBuilder() = default;
  // Goes on from a fabric that is there.
  explicit FabricBuilder(Fabric base) : fabric_(std::move(base)) {}

  // AlreadyExists: the name is taken; InvalidArgument: a name that is empty, longer than 255 or not
  // of [A-Za-z0-9_.:-], a latency or buffer out of its range, or a host in a tier of switches;
  // ResourceExhausted: kMaxNodes are there.
  absl::StatusOr<NodeId> Add(FabricNode node);

  struct Cable {
    Bandwidth bandwidth;   // > 0
    absl::Duration delay;  // >= 0
    Bytes buffer;          // >= 0; of the queue at a
    int nic = -1;          // of the host, if one end is a host: then 0 to kMaxNics - 1
    std::optional<Bytes> reverse_buffer;  // >= 0; of the queue at b; without: as `buffer`
  };
  // The link from a to b; its reverse is the next id. InvalidArgument: a and b are the same, or
  // both hosts, or a number above is out of its range. ResourceExhausted: kMaxLinks are there.
  absl::StatusOr<LinkId> Connect(NodeId a, NodeId b, const Cable& cable);

  // Where no node has a pod, and there are three tiers or more, what hangs together below the
  // highest, directly or through hosts, gets one. InvalidArgument: no host, a host without a cable,
  // or one whose NICs are not numbered from 0 without a gap.
  absl::StatusOr<Fabric> Build() &&;

  // What was added so far.
  int nodes() const { return fabric_.nodes(); }
  int links() const { return fabric_.links(); }
  const FabricNode& node(NodeId id) const { return fabric_.node(id); }
  absl::StatusOr<NodeId> Find(absl::string_view name) const { return fabric_.Find(name); }

 private:
  absl::Status CheckCable(NodeId a, NodeId b, const Cable& cable) const;
  void IndexLinks();
  absl::Status IndexNics();
  void NumberPods();

  Fabric fabric_;
};

}  // namespace weft::topology

#endif  // WEFT_TOPOLOGY_FABRIC_FABRIC_H_
