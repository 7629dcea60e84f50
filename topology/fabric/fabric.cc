#include "topology/fabric/fabric.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "base/settings.h"
#include "base/status.h"
#include "topology/fabric/union_find.h"

namespace weft::topology {
namespace {

constexpr size_t kMaxName = 255;
constexpr size_t kMaxPorts = 64;  // of one NIC

bool IsNameCharacter(char c) {
  return absl::ascii_isalnum(c) || c == '_' || c == '.' || c == ':' || c == '-';
}

absl::Status CheckName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("a node without a name");
  if (name.size() > kMaxName) {
    return absl::InvalidArgumentError(absl::StrCat("the name \"", name.substr(0, 32), "...\" has ",
                                                   name.size(), " characters; at most ", kMaxName));
  }
  for (char c : name) {
    if (IsNameCharacter(c)) continue;
    return absl::InvalidArgumentError(absl::StrCat("the name \"", absl::CEscape(name),
                                                   "\" may have only letters, digits and _ . : -"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Span<const LinkId> Fabric::LinksFrom(NodeId node) const {
  uint32_t begin = out_begin_[node.index()];
  return absl::MakeConstSpan(out_).subspan(begin, out_begin_[node.index() + 1] - begin);
}

absl::Span<const LinkId> Fabric::Ports(Endpoint endpoint) const {
  if (endpoint.host.value() < 0 || endpoint.host.value() >= nodes()) return {};
  if (endpoint.nic < 0 || endpoint.nic >= nics(endpoint.host)) return {};
  auto index = static_cast<size_t>(IndexOf(endpoint));
  bool is_last = endpoint.nic + 1 == nics(endpoint.host);
  uint32_t end = is_last ? out_begin_[endpoint.host.index() + 1] : port_begin_[index + 1];
  return absl::MakeConstSpan(out_).subspan(port_begin_[index], end - port_begin_[index]);
}

int Fabric::nics(NodeId host) const {
  return static_cast<int>(endpoint_begin_[host.index() + 1] - endpoint_begin_[host.index()]);
}

std::vector<Endpoint> Fabric::Endpoints() const {
  std::vector<Endpoint> all;
  all.reserve(static_cast<size_t>(endpoints()));
  for (NodeId host : hosts_) {
    for (int nic = 0; nic < nics(host); ++nic) all.push_back({host, nic});
  }
  return all;
}

absl::StatusOr<NodeId> Fabric::Find(absl::string_view name) const {
  auto found = by_name_.find(name);
  if (found != by_name_.end()) return found->second;
  std::string nearest;
  // The edit distance to each of 100,000 names would take a second.
  constexpr size_t kMaxCandidates = 4096;
  std::vector<std::string> names;
  for (const FabricNode& node : nodes_) {
    if (names.size() >= kMaxCandidates) break;
    names.push_back(node.name);
  }
  if (name.size() <= kMaxName) nearest = NearestName(name, names);
  return absl::NotFoundError(
      absl::StrCat("the fabric has no node \"", name.substr(0, kMaxName), "\"",
                   nearest.empty() ? "" : absl::StrCat("; nearest: ", nearest)));
}

absl::StatusOr<LinkId> Fabric::FindLink(NodeId source, NodeId target) const {
  LinkId first;
  for (LinkId id : LinksFrom(source)) {
    if (link(id).target == target && (first == LinkId() || id < first)) first = id;
  }
  if (first != LinkId()) return first;
  return absl::NotFoundError(
      absl::StrCat("no cable between ", node(source).name, " and ", node(target).name));
}

std::string Fabric::Name(LinkId id) const {
  const FabricLink& of = link(id);
  int before = 0;
  for (LinkId other : LinksFrom(of.source)) {
    if (other < id && link(other).target == of.target) ++before;
  }
  std::string name = absl::StrCat(node(of.source).name, ">", node(of.target).name);
  if (before > 0) absl::StrAppend(&name, "#", before);
  return name;
}

void Fabric::SetUp(LinkId id, bool up) {
  FabricLink& there = links_[id.index()];
  there.up = up;
  links_[there.reverse.index()].up = up;
  ++generation_;
}

void Fabric::SetBandwidth(LinkId id, Bandwidth bandwidth) {
  WEFT_CHECK(bandwidth > Bandwidth(), "link " << Name(id) << ": " << ToString(bandwidth));
  FabricLink& there = links_[id.index()];
  there.bandwidth = bandwidth;
  links_[there.reverse.index()].bandwidth = bandwidth;
  ++generation_;
}

absl::StatusOr<NodeId> FabricBuilder::Add(FabricNode node) {
  WEFT_RETURN_IF_ERROR(CheckName(node.name));
  if (fabric_.nodes() >= kMaxNodes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a fabric may have at most ", kMaxNodes, " nodes"));
  }
  if (node.latency < absl::ZeroDuration() || node.latency > kMaxDelay) {
    return absl::InvalidArgumentError(
        absl::StrCat(node.name, ": a latency of ", absl::FormatDuration(node.latency),
                     "; it must be from 0 to ", absl::FormatDuration(kMaxDelay)));
  }
  if (node.kind == NodeKind::kHost && node.tier != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("host ", node.name, " in tier ", node.tier, "; hosts are tier 0"));
  }
  if (node.buffer < Bytes(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(node.name, ": a buffer of ", node.buffer.count(), " bytes"));
  }
  NodeId id(fabric_.nodes());
  auto [known, is_new] = fabric_.by_name_.try_emplace(node.name, id);
  if (!is_new) {
    return absl::AlreadyExistsError(absl::StrCat("there are two nodes \"", node.name, "\""));
  }
  (node.kind == NodeKind::kHost ? fabric_.hosts_ : fabric_.switches_).push_back(id);
  fabric_.nodes_.push_back(std::move(node));
  return id;
}

absl::Status FabricBuilder::CheckCable(NodeId a, NodeId b, const Cable& cable) const {
  auto error = [&](const auto&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("cable ", fabric_.node(a).name, " - ", fabric_.node(b).name, ": ", what...));
  };
  if (a == b) return error("both ends are the same node");
  bool a_is_host = fabric_.node(a).kind == NodeKind::kHost;
  bool b_is_host = fabric_.node(b).kind == NodeKind::kHost;
  if (a_is_host && b_is_host) return error("both ends are hosts; a host forwards nothing");
  if (!(cable.bandwidth > Bandwidth()) || cable.bandwidth > kMaxBandwidth) {
    return error("a bandwidth of ", ToString(cable.bandwidth), "; it must be above 0 and at most ",
                 ToString(kMaxBandwidth));
  }
  if (cable.delay < absl::ZeroDuration() || cable.delay > kMaxDelay) {
    return error("a delay of ", absl::FormatDuration(cable.delay), "; it must be from 0 to ",
                 absl::FormatDuration(kMaxDelay));
  }
  for (Bytes buffer : {cable.buffer, cable.reverse_buffer.value_or(cable.buffer)}) {
    if (buffer < Bytes(0)) return error("a buffer of ", buffer.count(), " bytes");
  }
  if ((a_is_host || b_is_host) && (cable.nic < 0 || cable.nic >= kMaxNics)) {
    return error("NIC ", cable.nic, "; a host's are numbered from 0 to ", kMaxNics - 1);
  }
  if (fabric_.links() + 2 > kMaxLinks) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a fabric may have at most ", kMaxLinks / 2, " cables"));
  }
  return absl::OkStatus();
}

absl::StatusOr<LinkId> FabricBuilder::Connect(NodeId a, NodeId b, const Cable& cable) {
  for (NodeId end : {a, b}) {
    if (end.value() >= 0 && end.value() < fabric_.nodes()) continue;
    return absl::InvalidArgumentError(absl::StrCat("there is no node ", end.value()));
  }
  WEFT_RETURN_IF_ERROR(CheckCable(a, b, cable));
  LinkId there(fabric_.links());
  LinkId back(fabric_.links() + 1);
  bool has_host =
      fabric_.node(a).kind == NodeKind::kHost || fabric_.node(b).kind == NodeKind::kHost;
  FabricLink link;
  link.source = a;
  link.target = b;
  link.bandwidth = link.nominal = cable.bandwidth;
  link.delay = cable.delay;
  link.buffer = cable.buffer;
  link.reverse = back;
  link.nic = has_host ? cable.nic : -1;
  fabric_.links_.push_back(link);
  std::swap(link.source, link.target);
  link.buffer = cable.reverse_buffer.value_or(cable.buffer);
  link.reverse = there;
  fabric_.links_.push_back(link);
  return there;
}

// Sorts the links by their source, a host's by NIC; ids stay in order otherwise.
void FabricBuilder::IndexLinks() {
  Fabric& fabric = fabric_;
  fabric.out_begin_.assign(static_cast<size_t>(fabric.nodes()) + 1, 0);
  for (const FabricLink& link : fabric.links_) ++fabric.out_begin_[link.source.index() + 1];
  for (size_t i = 1; i < fabric.out_begin_.size(); ++i) {
    fabric.out_begin_[i] += fabric.out_begin_[i - 1];
  }
  std::vector<uint32_t> next(fabric.out_begin_.begin(), fabric.out_begin_.end() - 1);
  fabric.out_.resize(fabric.links_.size());
  for (int i = 0; i < fabric.links(); ++i) {
    fabric.out_[next[fabric.link(LinkId(i)).source.index()]++] = LinkId(i);
  }
  for (NodeId host : fabric.hosts_) {
    std::stable_sort(fabric.out_.begin() + fabric.out_begin_[host.index()],
                     fabric.out_.begin() + fabric.out_begin_[host.index() + 1],
                     [&](LinkId x, LinkId y) { return fabric.link(x).nic < fabric.link(y).nic; });
  }
}

// Numbers the NICs of all hosts; every NIC below the highest of a host must have a port.
absl::Status FabricBuilder::IndexNics() {
  Fabric& fabric = fabric_;
  fabric.port_begin_.clear();
  fabric.endpoint_begin_.assign(static_cast<size_t>(fabric.nodes()) + 1, 0);
  for (int node = 0; node < fabric.nodes(); ++node) {
    fabric.endpoint_begin_[static_cast<size_t>(node)] =
        static_cast<uint32_t>(fabric.port_begin_.size());
    if (fabric.node(NodeId(node)).kind != NodeKind::kHost) continue;
    const std::string& name = fabric.node(NodeId(node)).name;
    absl::Span<const LinkId> ports = fabric.LinksFrom(NodeId(node));
    if (ports.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("host ", name, " has no cable"));
    }
    int nics = 0;
    size_t ports_of_nic = 0;
    for (size_t i = 0; i < ports.size(); ++i) {
      int nic = fabric.link(ports[i]).nic;
      ports_of_nic = nic < nics ? ports_of_nic + 1 : 1;
      if (ports_of_nic > kMaxPorts) {
        return absl::InvalidArgumentError(
            absl::StrCat("NIC ", nic, " of host ", name, " has more than ", kMaxPorts, " ports"));
      }
      if (nic > nics) {
        return absl::InvalidArgumentError(
            absl::StrCat("host ", name, " has a NIC ", nic, " but no NIC ", nics));
      }
      if (nic < nics) continue;
      fabric.port_begin_.push_back(fabric.out_begin_[static_cast<size_t>(node)] +
                                   static_cast<uint32_t>(i));
      ++nics;
    }
  }
  fabric.endpoint_begin_.back() = static_cast<uint32_t>(fabric.port_begin_.size());
  return absl::OkStatus();
}

// Where no node has a pod: a pod is what hangs together below the highest of three tiers or more.
void FabricBuilder::NumberPods() {
  std::vector<FabricNode>& nodes = fabric_.nodes_;
  int top = 0;
  for (const FabricNode& node : nodes) {
    if (node.pod >= 0) return;
    top = std::max(top, node.tier);
  }
  if (top < 3) return;
  UnionFind pods(nodes.size());
  const auto is_below = [&](NodeId id) { return fabric_.node(id).tier < top; };
  for (const FabricLink& link : fabric_.links_) {
    if (!is_below(link.source) || !is_below(link.target)) continue;
    pods.Join(link.source.value(), link.target.value());
  }
  std::map<int32_t, int>
      numbers;  // by UnionFind::Find(); a host that hangs on the highest tier alone has none
  for (NodeId id : fabric_.switches_) {
    if (is_below(id)) numbers.try_emplace(pods.Find(id.value()), static_cast<int>(numbers.size()));
  }
  if (numbers.size() < 2) return;
  for (size_t i = 0; i < nodes.size(); ++i) {
    const auto number = numbers.find(pods.Find(static_cast<int32_t>(i)));
    if (number != numbers.end()) nodes[i].pod = number->second;
  }
}

absl::StatusOr<Fabric> FabricBuilder::Build() && {
  if (fabric_.hosts_.empty()) return absl::InvalidArgumentError("a fabric without a host");
  IndexLinks();
  WEFT_RETURN_IF_ERROR(IndexNics());
  NumberPods();
  return std::move(fabric_);
}

}  // namespace weft::topology
