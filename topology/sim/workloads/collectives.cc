#include "topology/sim/workloads/collectives.h"

#include <algorithm>
#include <bit>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr double kMostTransfers = 20e6;

Bytes Part(Bytes whole, int64_t parts) { return Bytes((whole.count() + parts - 1) / parts); }

// Writes one collective. What a rank has done or received so far is `at_`: its next send waits for
// all of it.
class Writer {
 public:
  Writer(Workload& workload, absl::Span<const Endpoint> endpoints, const CollectiveTraffic& traffic,
         absl::string_view name, absl::Span<const OperationId> after)
      : workload_(workload),
        endpoints_(endpoints),
        traffic_(traffic),
        n_(endpoints.size()),
        group_(workload.AddGroup(std::string(name))),
        begin_(workload.Add({.kind = OperationKind::kJoin, .group = group_}, after)),
        at_(n_, {begin_}) {}

  OperationId Write();

 private:
  OperationId Send(size_t from, size_t to, Bytes bytes, absl::Span<const OperationId> after) {
    return workload_.Add({.in_order = true,
                          .source = endpoints_[from],
                          .target = endpoints_[to],
                          .bytes = bytes,
                          .group = group_},
                         after);
  }
  OperationId Join(absl::Span<const OperationId> after) {
    return workload_.Add({.kind = OperationKind::kJoin, .group = group_}, after);
  }
  bool reduces() const { return traffic_.op != CollectiveOp::kAllGather; }
  bool gathers() const { return traffic_.op != CollectiveOp::kReduceScatter; }

  OperationId Ring(const std::vector<size_t>& ranks, Bytes bytes, uint32_t steps,
                   absl::Span<const OperationId> after);
  void Direct();
  void Exchange(Bytes bytes, size_t distance);
  void HalvingDoubling();
  void RecursiveDoubling();
  void Tree();
  void OneTree(bool mirrored, Bytes bytes);
  void Hierarchical();
  OperationId InGroup(size_t first, absl::Span<const OperationId> after);
  void Chain();

  Workload& workload_;
  const absl::Span<const Endpoint> endpoints_;
  const CollectiveTraffic& traffic_;
  const size_t n_;
  const uint32_t group_;
  const OperationId begin_;
  std::vector<std::vector<OperationId>> at_;  // by rank
};

OperationId Writer::Ring(const std::vector<size_t>& ranks, Bytes bytes, uint32_t steps,
                         absl::Span<const OperationId> after) {
  std::vector<Endpoint> members;
  members.reserve(ranks.size());
  for (size_t rank : ranks) members.push_back(endpoints_[rank]);
  const uint32_t ring = workload_.AddRing(std::move(members));
  return workload_.Add(
      {.kind = OperationKind::kRing, .bytes = bytes, .group = group_, .ring = ring, .steps = steps},
      after);
}

// Everybody's part to its owner; when an owner has them all, the result to everybody.
void Writer::Direct() {
  const Bytes part = Part(traffic_.bytes, static_cast<int64_t>(n_));
  for (int phase = 0; phase < 2; ++phase) {
    if (!(phase == 0 ? reduces() : gathers())) continue;
    std::vector<std::vector<OperationId>> received(n_);
    for (size_t shift = 1; shift < n_; ++shift) {
      for (size_t rank = 0; rank < n_; ++rank) {
        const size_t to = (rank + shift) % n_;
        received[to].push_back(Send(rank, to, part, at_[rank]));
      }
    }
    for (size_t rank = 0; rank < n_; ++rank) at_[rank] = {Join(received[rank])};
  }
}

void Writer::Exchange(Bytes bytes, size_t distance) {
  std::vector<OperationId> sent(n_);
  for (size_t rank = 0; rank < n_; ++rank)
    sent[rank] = Send(rank, rank ^ distance, bytes, at_[rank]);
  for (size_t rank = 0; rank < n_; ++rank) at_[rank] = {sent[rank ^ distance], sent[rank]};
}

void Writer::HalvingDoubling() {
  for (size_t distance = n_ / 2; reduces() && distance > 0; distance /= 2) {
    Exchange(Part(traffic_.bytes, static_cast<int64_t>(n_ / distance)), distance);
  }
  for (size_t distance = 1; gathers() && distance < n_; distance *= 2) {
    Exchange(Part(traffic_.bytes, static_cast<int64_t>(n_ / distance)), distance);
  }
}

void Writer::RecursiveDoubling() {
  for (size_t distance = 1; distance < n_; distance *= 2) Exchange(traffic_.bytes, distance);
}

// Two trees, each with half of the bytes: a rank that has children in one has none in the other.
void Writer::Tree() {
  const Bytes half = Part(traffic_.bytes, 2);
  OneTree(false, half);
  OneTree(true, traffic_.bytes - half);
}

// Rank 0 on top; below it rank r with lowest set bit b hangs under (r without b) plus 2b, or
// without it where that is beyond the end: odd ranks are leaves. Mirrored (n even) or turned by one
// (n odd), the leaves are others.
void Writer::OneTree(bool mirrored, Bytes bytes) {
  auto real = [&](size_t rank) {
    if (!mirrored) return rank;
    return n_ % 2 == 0 ? n_ - 1 - rank : (rank + 1) % n_;
  };
  std::vector<size_t> order, parent(n_);  // leaves first: by lowest set bit
  for (size_t rank = 1; rank < n_; ++rank) {
    const size_t bit = rank & (~rank + 1);
    parent[rank] = (rank ^ bit) | (bit << 1);
    if (parent[rank] >= n_) parent[rank] = rank ^ bit;
    order.push_back(rank);
  }
  // Towards the top lowest bits grow; a parent with a smaller one is a smaller rank's (rank ^ bit).
  std::vector<size_t> depth(n_);
  for (size_t rank : order) {
    size_t up = rank;
    while (up != 0) {
      up = parent[up];
      ++depth[rank];
    }
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return depth[a] > depth[b]; });
  const int64_t chunks = std::max<int64_t>(1, Part(bytes, traffic_.chunk.count()).count());
  const Bytes chunk = Part(bytes, chunks);
  for (int64_t k = 0; k < chunks; ++k) {
    std::vector<std::vector<OperationId>> reduced(n_, {begin_});
    for (size_t rank : order) {
      reduced[parent[rank]].push_back(Send(real(rank), real(parent[rank]), chunk, reduced[rank]));
    }
    std::vector<OperationId> whole(n_);
    whole[0] = Join(reduced[0]);
    for (auto rank = order.rbegin(); rank != order.rend(); ++rank) {
      whole[*rank] = Send(real(parent[*rank]), real(*rank), chunk, {whole[parent[*rank]]});
    }
    for (size_t rank = 0; rank < n_; ++rank) at_[real(rank)].push_back(whole[rank]);
  }
}

// Half of the work inside a group: reduce-scatter, or all-gather.
OperationId Writer::InGroup(size_t first, absl::Span<const OperationId> after) {
  const size_t g = static_cast<size_t>(traffic_.group);
  const Bytes part = Part(traffic_.bytes, traffic_.group);
  const uint32_t steps = static_cast<uint32_t>(g - 1);
  if (endpoints_[first].host == endpoints_[first + g - 1].host) {
    return workload_.Add({.kind = OperationKind::kCompute,
                          .source = endpoints_[first],
                          .duration = (part * steps) / traffic_.local,
                          .group = group_},
                         after);
  }
  std::vector<size_t> ranks;
  for (size_t i = 0; i < g; ++i) ranks.push_back(first + i);
  return Ring(ranks, part, steps, after);
}

void Writer::Hierarchical() {
  const size_t g = static_cast<size_t>(traffic_.group), groups = n_ / g;
  std::vector<OperationId> scattered, gathered;
  for (size_t k = 0; g > 1 && k < groups; ++k) scattered.push_back(InGroup(k * g, {begin_}));
  // A ring needs its members alone, but those of all groups: hence all of `scattered`.
  const OperationId middle = scattered.empty() ? begin_ : Join(scattered);
  std::vector<OperationId> across;
  const Bytes part = Part(Part(traffic_.bytes, traffic_.group), static_cast<int64_t>(groups));
  for (size_t i = 0; groups > 1 && i < g; ++i) {
    std::vector<size_t> ranks;
    for (size_t k = 0; k < groups; ++k) ranks.push_back(k * g + i);
    across.push_back(Ring(ranks, part, static_cast<uint32_t>(2 * (groups - 1)), {middle}));
  }
  const OperationId reduced = across.empty() ? middle : Join(across);
  for (size_t k = 0; g > 1 && k < groups; ++k) gathered.push_back(InGroup(k * g, {reduced}));
  at_[0] = gathered.empty() ? std::vector<OperationId>{reduced} : gathered;
}

void Writer::Chain() {
  const int64_t chunks = std::max<int64_t>(1, Part(traffic_.bytes, traffic_.chunk.count()).count());
  const Bytes chunk = Part(traffic_.bytes, chunks);
  for (int64_t k = 0; k < chunks; ++k) {
    OperationId has = begin_;
    for (size_t rank = 0; rank + 1 < n_; ++rank) {
      has = Send(rank, rank + 1, chunk, {has});
      at_[rank + 1].push_back(has);
    }
  }
}

OperationId Writer::Write() {
  std::vector<size_t> all(n_);
  for (size_t rank = 0; rank < n_; ++rank) all[rank] = rank;
  switch (traffic_.algorithm) {
    case CollectiveAlgorithm::kRing: {
      const uint32_t steps = static_cast<uint32_t>(n_ - 1) * (reduces() && gathers() ? 2 : 1);
      at_[0] = {Ring(all, Part(traffic_.bytes, static_cast<int64_t>(n_)), steps, {begin_})};
      break;
    }
    case CollectiveAlgorithm::kDirect:
      Direct();
      break;
    case CollectiveAlgorithm::kHalvingDoubling:
      HalvingDoubling();
      break;
    case CollectiveAlgorithm::kRecursiveDoubling:
      RecursiveDoubling();
      break;
    case CollectiveAlgorithm::kTree:
      Tree();
      break;
    case CollectiveAlgorithm::kHierarchical:
      Hierarchical();
      break;
    case CollectiveAlgorithm::kChain:
      Chain();
      break;
  }
  std::vector<OperationId> ends;
  for (const auto& rank : at_) ends.insert(ends.end(), rank.begin(), rank.end());
  return Join(ends);
}

double TransfersOf(double n, const CollectiveTraffic& traffic) {
  const double chunks = static_cast<double>(traffic.bytes.count()) /
                            static_cast<double>(std::max<int64_t>(1, traffic.chunk.count())) +
                        2;
  switch (traffic.algorithm) {
    case CollectiveAlgorithm::kDirect:
      return 2 * n * n;
    case CollectiveAlgorithm::kTree:
      return 2 * n * chunks;
    case CollectiveAlgorithm::kChain:
      return n * chunks;
    default:
      return n * 64;
  }
}

absl::Status CheckCollective(size_t n, const CollectiveTraffic& traffic) {
  const CollectiveAlgorithm algorithm = traffic.algorithm;
  const bool any = algorithm == CollectiveAlgorithm::kRing ||
                   algorithm == CollectiveAlgorithm::kDirect ||
                   algorithm == CollectiveAlgorithm::kHalvingDoubling;
  const bool chain = algorithm == CollectiveAlgorithm::kChain;
  const bool broadcast = traffic.op == CollectiveOp::kBroadcast;
  if (broadcast != chain || (!any && !chain && traffic.op != CollectiveOp::kAllReduce)) {
    return absl::InvalidArgumentError(
        "this algorithm lacks this operation: ring, direct and halving_doubling have all_reduce, "
        "reduce_scatter and all_gather; recursive_doubling, tree and hierarchical have all_reduce; "
        "chain has broadcast");
  }
  if (n < 2) return absl::InvalidArgumentError(absl::StrCat("a collective of ", n, " ranks"));
  if (traffic.bytes < Bytes(0) || traffic.chunk < Bytes(1)) {
    return absl::InvalidArgumentError(absl::StrCat("a collective of ", traffic.bytes.count(),
                                                   " bytes in chunks of ", traffic.chunk.count()));
  }
  if ((algorithm == CollectiveAlgorithm::kHalvingDoubling ||
       algorithm == CollectiveAlgorithm::kRecursiveDoubling) &&
      !std::has_single_bit(n)) {
    return absl::InvalidArgumentError(absl::StrCat(n, " ranks: doubling needs a power of two"));
  }
  if (algorithm == CollectiveAlgorithm::kHierarchical &&
      (traffic.group < 1 || n % static_cast<size_t>(traffic.group) != 0 ||
       traffic.local.bytes_per_second() <= 0)) {
    return absl::InvalidArgumentError(
        absl::StrCat(n, " ranks in groups of ", traffic.group,
                     ": wanted are groups that divide them, and a bandwidth within hosts above 0"));
  }
  if (TransfersOf(static_cast<double>(n), traffic) > kMostTransfers) {
    return absl::ResourceExhaustedError(
        absl::StrCat("about ", TransfersOf(static_cast<double>(n), traffic),
                     " transfers would come of it; at most ", kMostTransfers, " are built"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<OperationId> AddCollective(Workload& workload, absl::Span<const Endpoint> endpoints,
                                          const CollectiveTraffic& traffic, absl::string_view name,
                                          absl::Span<const OperationId> after) {
  WEFT_RETURN_IF_ERROR(CheckCollective(endpoints.size(), traffic));
  return Writer(workload, endpoints, traffic, name, after).Write();
}

}  // namespace weft::topology
