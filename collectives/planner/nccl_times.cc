#include "collectives/planner/nccl_times.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/group_place.h"
#include "collectives/planner/cost.h"

namespace weft::collectives::planner {
namespace {

// Estimates, in ns; what matters is their order and how far they lie apart. A hop between GPUs of a
// host, over NVLink; the same between hosts, which a proxy thread and two NICs are part of, besides
// the fabric's delay.
struct ProtocolCosts {
  double inside, across;
  double wire_bytes;  // for a byte of data
  uint64_t chunk;     // bytes that NCCL hands on at once, with its standard buffers
};
constexpr ProtocolCosts kProtocols[] = {
    {.inside = 800, .across = 4000, .wire_bytes = 2, .chunk = 16 << 10},
    {.inside = 1500, .across = 5000, .wire_bytes = 128.0 / 120, .chunk = 64 << 10},
    {.inside = 4000, .across = 12000, .wire_bytes = 1, .chunk = 512 << 10},
};
// ns for a byte over NVLink, out of one GPU.
constexpr double kInsideByte = 1.0 / 200;
// GPUs reduce and copy with more cores than they have links.
constexpr int kCores = 1 << 30;

const Algorithm& OurAlgorithm(NcclAlgorithm algorithm, CollectiveKind kind) {
  if (algorithm == NcclAlgorithm::kTree) return kTree;
  if (algorithm == NcclAlgorithm::kPat) return kPat;
  return HasRoot(kind) ? kChain : kRing;
}

bool NcclHas(NcclAlgorithm algorithm, CollectiveKind kind, bool one_rank_a_host) {
  switch (kind) {
    case CollectiveKind::kAllReduce:
      return algorithm != NcclAlgorithm::kPat;
    case CollectiveKind::kAllGather:
    case CollectiveKind::kReduceScatter:
      return algorithm == NcclAlgorithm::kRing ||
             (algorithm == NcclAlgorithm::kPat && one_rank_a_host);
    case CollectiveKind::kBroadcast:
    case CollectiveKind::kReduce:
      return algorithm == NcclAlgorithm::kRing;
    default:
      return false;
  }
}

}  // namespace

const char* ToString(NcclAlgorithm algorithm) {
  switch (algorithm) {
    case NcclAlgorithm::kRing:
      return "Ring";
    case NcclAlgorithm::kTree:
      return "Tree";
    case NcclAlgorithm::kPat:
      return "PAT";
  }
  return "?";
}

const char* ToString(NcclProtocol protocol) {
  switch (protocol) {
    case NcclProtocol::kLl:
      return "LL";
    case NcclProtocol::kLl128:
      return "LL128";
    case NcclProtocol::kSimple:
      return "Simple";
  }
  return "?";
}

NcclTimes::NcclTimes(int ranks, int hosts, const NcclNetwork& network)
    : ranks_(ranks),
      hosts_(hosts),
      ranks_per_host_((ranks + hosts - 1) / hosts),
      network_(network) {
  WEFT_CHECK(hosts >= 2 && ranks >= hosts, ranks << " ranks on " << hosts << " hosts");
  WEFT_CHECK(network.hosts.empty() || network.hosts.size() == static_cast<size_t>(hosts),
             network.hosts.size() << " places of " << hosts << " hosts");
  for (size_t p = 0; p < places_.size(); ++p) places_[p] = PlacesOf(static_cast<NcclProtocol>(p));
}

NcclTimes::Places NcclTimes::PlacesOf(NcclProtocol protocol) const {
  const double wire_bytes = kProtocols[static_cast<size_t>(protocol)].wire_bytes;
  std::vector<RankPlace> hosts = network_.hosts;
  hosts.resize(static_cast<size_t>(hosts_));
  for (size_t host = 0; host < hosts.size(); ++host) {
    RankPlace& place = hosts[host];
    place.host = absl::StrCat(host);
    for (double* rate : {&place.nic_rate, &place.host_rate, &place.switch_rate}) {
      *rate /= wire_bytes;
    }
  }
  std::vector<RankPlace> all;
  for (int64_t rank = 0; rank < ranks_; ++rank) {
    all.push_back(hosts[static_cast<size_t>(rank * hosts_ / ranks_)]);
  }
  return {std::make_shared<const GroupPlace>(all), std::make_shared<const GroupPlace>(hosts)};
}

std::optional<double> NcclTimes::Nanoseconds(CollectiveKind kind, uint64_t bytes,
                                             NcclAlgorithm algorithm, NcclProtocol protocol) const {
  if (!NcclHas(algorithm, kind, ranks_ == hosts_)) return std::nullopt;
  const ProtocolCosts& costs = kProtocols[static_cast<size_t>(protocol)];
  const double nic = costs.wire_bytes * 1e9 / network_.nic.bytes_per_second();
  CostTable table;
  table.inside = {.latency = costs.inside, .message = 0, .byte = costs.wire_bytes * kInsideByte};
  table.across = {.latency = costs.across + absl::ToDoubleNanoseconds(network_.delay),
                  .message = 0,
                  .byte = nic,
                  .host_byte = nic / network_.nics};
  table.cores = kCores;

  // A tree of NCCL joins hosts; inside a host it is a chain.
  const bool tree = algorithm == NcclAlgorithm::kTree;
  CollectiveSpec spec{.kind = kind, .size = tree ? hosts_ : ranks_, .count = bytes};
  const Places& places = places_[static_cast<size_t>(protocol)];
  spec.place = tree ? places.one_a_host : places.all;
  spec.channels = std::max(std::min(network_.nics, spec.place->ranks_min), 1);
  spec.chunk = costs.chunk;
  if (kind == CollectiveKind::kAllGather || kind == CollectiveKind::kReduceScatter) {
    spec.count = bytes / static_cast<uint64_t>(ranks_);
  }
  Cost cost = OurAlgorithm(algorithm, kind).cost(spec);
  cost.lanes = std::max<double>(cost.lanes, network_.nics);
  if (tree) cost.turns += 2.0 * (ranks_per_host_ - 1);
  return static_cast<double>(TimeOf(cost, spec, 1, table));
}

std::optional<absl::Duration> NcclTimes::Predict(CollectiveKind kind, uint64_t bytes,
                                                 NcclAlgorithm algorithm,
                                                 NcclProtocol protocol) const {
  const std::optional<double> ns = Nanoseconds(kind, bytes, algorithm, protocol);
  if (!ns.has_value()) return std::nullopt;
  return absl::Nanoseconds(*ns);
}

}  // namespace weft::collectives::planner
