#include "collectives/simulate/workloads.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/settings.h"
#include "base/status.h"
#include "collectives/algorithms/algorithm.h"
#include "collectives/algorithms/paths.h"
#include "collectives/group_place.h"
#include "collectives/planner/planner.h"
#include "collectives/simulate/simulate.h"

namespace weft::collectives {
namespace {

using topology::Endpoint;
using topology::OperationId;
using topology::Parameter;
using topology::Parameters;
using topology::WorkloadContext;
using topology::WorkloadKind;
using Type = topology::ParameterType;

constexpr double kMostBytes = 1e15;

constexpr Parameter kShared[] = {
    {"bytes", Type::kBytes, "64MiB", 0, kMostBytes, "", "of a rank's whole buffer"},
    {"element", Type::kCount, "4", 1, 16, "", "bytes of a number"},
    {"chunk", Type::kBytes, "256KiB", 1, kMostBytes, "", "in which algorithms pipeline"},
    {"channels", Type::kCount, "1", 1, 64, "", "rings at once"},
    {"root", Type::kCount, "0", 0, 1 << 20, "", "of kinds that have one"},
    {"group", Type::kCount, "0", 0, 1 << 20, "",
     "ranks that count as one host, in their order; 0: those that share one"},
    {"local", Type::kBandwidth, "2400Gbps", 1, 1e6, "", "of a rank to others of its host"},
    {"memory", Type::kBandwidth, "", 1e-3, 1e6, "", "of copies and reductions; none: no time"},
    {"repeat", Type::kCount, "1", 1, 1000, "", "times, one after the other"},
    topology::kRanksParameter,
    topology::kOrderParameter};

// The keys of a kind: those above, and its algorithms.
template <CollectiveKind kKind>
absl::Span<const Parameter> ParametersOf() {
  static const std::string names = [] {
    std::string text = "auto";
    for (const Algorithm* one : Algorithms()) {
      if (one->has(kKind)) absl::StrAppend(&text, "|", one->name);
    }
    return text;
  }();
  static const std::vector<Parameter> table = [] {
    std::vector<Parameter> rows{{"algorithm", Type::kChoice, "auto", 0, 0, names.c_str(),
                                 "docs/collectives.md; auto: the planner's choice"}};
    rows.insert(rows.end(), std::begin(kShared), std::end(kShared));
    return rows;
  }();
  return table;
}

bool CountsTheWhole(CollectiveKind kind) {
  return kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kBroadcast ||
         kind == CollectiveKind::kReduce;
}

std::shared_ptr<const GroupPlace> PlaceOn(const std::vector<Endpoint>& ranks, int64_t group) {
  std::vector<std::string> hosts;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    hosts.push_back(group > 0 ? absl::StrCat(static_cast<int64_t>(rank) / group)
                              : absl::StrCat(ranks[rank].host.value()));
  }
  return std::make_shared<const GroupPlace>(hosts);
}

struct Chosen {
  const Algorithm* algorithm;
  CollectiveSpec spec;
};

Chosen Choose(const std::string& name, const CollectiveSpec& spec, size_t element) {
  if (name != "auto") return {FindAlgorithm(name, spec.kind), spec};
  Settings settings(LibrarySettings());
  const absl::Status status = settings.Set("transport", "verbs", "the simulator");
  WEFT_CHECK(status.ok(), status);
  const planner::CostTable table =
      planner::TableFor(planner::DefaultCalibration(), settings, spec.size);
  const planner::Plan plan = planner::ChoosePlan(spec, element, table, "");
  return {plan.algorithm, planner::SpecOf(plan, spec)};
}

// The steps of a ring whose parts are one message each and equally long, else nothing.
std::optional<topology::Operation> RingShorthand(const Chosen& chosen,
                                                 const SimulationPlacement& placement,
                                                 topology::Workload& workload) {
  const CollectiveSpec& spec = chosen.spec;
  const auto n = static_cast<uint64_t>(spec.size);
  const bool whole = CountsTheWhole(spec.kind);
  const uint64_t part = whole ? spec.count / n : spec.count;
  const bool known = spec.kind == CollectiveKind::kAllReduce ||
                     spec.kind == CollectiveKind::kAllGather ||
                     spec.kind == CollectiveKind::kReduceScatter;
  if (chosen.algorithm != &kRing || !known || spec.channels != 1 || spec.size < 2 || part == 0 ||
      part > spec.chunk || (whole && spec.count % n != 0) ||
      placement.memory.bytes_per_second() > 0) {
    return std::nullopt;
  }
  std::vector<Endpoint> members;
  for (int rank : RingOrder(spec, 0))
    members.push_back(placement.endpoints[static_cast<size_t>(rank)]);
  for (size_t i = 0; i < members.size(); ++i) {
    if (members[i].host == members[(i + 1) % members.size()].host) return std::nullopt;
  }
  const int passes = spec.kind == CollectiveKind::kAllReduce ? 2 : 1;
  return topology::Operation{.kind = topology::OperationKind::kRing,
                             .bytes = placement.element * static_cast<int64_t>(part),
                             .ring = workload.AddRing(std::move(members)),
                             .steps = static_cast<uint32_t>(passes * (spec.size - 1))};
}

absl::StatusOr<OperationId> AddOne(topology::Workload& workload, const Chosen& chosen,
                                   const SimulationPlacement& placement, absl::string_view name,
                                   absl::Span<const OperationId> after) {
  if (std::optional<topology::Operation> ring = RingShorthand(chosen, placement, workload)) {
    ring->group = workload.AddGroup(std::string(name));
    return workload.Add(*ring, after);
  }
  return AddCollective(workload, *chosen.algorithm, chosen.spec, placement, name, after);
}

template <CollectiveKind kKind>
absl::Status Add(const WorkloadContext& context, const Parameters& parameters) {
  SimulationPlacement placement{.element = Bytes(parameters.Count("element")),
                                .memory = parameters.Rate("memory"),
                                .local = parameters.Rate("local")};
  WEFT_ASSIGN_OR_RETURN(placement.endpoints, topology::RanksOf(context, parameters, 2));
  const auto n = static_cast<int64_t>(placement.endpoints.size());
  if (parameters.Count("root") >= n) {
    return absl::InvalidArgumentError(
        absl::StrCat("root=", parameters.Count("root"), ": there are ", n, " ranks"));
  }
  const int64_t parts = placement.element.count() * (CountsTheWhole(kKind) ? 1 : n);
  const CollectiveSpec spec{
      .kind = kKind,
      .size = static_cast<int>(n),
      .root = static_cast<int>(parameters.Count("root")),
      .count = static_cast<uint64_t>((parameters.ByteCount("bytes").count() + parts - 1) / parts),
      .chunk = static_cast<uint64_t>(
          std::max<int64_t>(1, parameters.ByteCount("chunk").count() / placement.element.count())),
      .channels = static_cast<int>(parameters.Count("channels")),
      .place = PlaceOn(placement.endpoints, parameters.Count("group"))};
  const Chosen chosen =
      Choose(parameters.Choice("algorithm"), spec, static_cast<size_t>(placement.element.count()));
  const int64_t repeat = parameters.Count("repeat");
  std::vector<OperationId> after;
  for (int64_t i = 0; i < repeat; ++i) {
    std::string name = absl::StrCat(chosen.algorithm->name, " ", ToString(kKind));
    if (repeat > 1) absl::StrAppend(&name, " ", i + 1);
    WEFT_ASSIGN_OR_RETURN(const OperationId end,
                          AddOne(context.workload, chosen, placement, name, after));
    after.assign(1, end);
  }
  return absl::OkStatus();
}

template <CollectiveKind kKind>
WorkloadKind Kind(const char* help) {
  return {ToString(kKind), help, ParametersOf<kKind>(), Add<kKind>};
}

}  // namespace

absl::Span<const WorkloadKind> CollectiveWorkloads() {
  using enum CollectiveKind;
  static const std::array kinds = {
      Kind<kAllReduce>("every rank gets the reduction of all"),
      Kind<kAllGather>("every rank gets all parts"),
      Kind<kReduceScatter>("every rank gets its part of the reduction"),
      Kind<kBroadcast>("every rank gets the root's buffer"),
      Kind<kReduce>("the root gets the reduction of all"),
      Kind<kGather>("the root gets all parts"),
      Kind<kScatter>("every rank gets its part from the root"),
      Kind<kAllToAll>("every rank gets a part from every other"),
      Kind<kBarrier>("every rank waits for all"),
  };
  return kinds;
}

}  // namespace weft::collectives
