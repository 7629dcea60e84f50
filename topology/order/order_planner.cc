#include "topology/order/order_planner.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"
#include "topology/order/bound.h"
#include "topology/order/search.h"
#include "topology/order/slot_grid.h"

namespace weft::topology {
namespace {

struct Candidate {
  PlacementScore score;
  Placement placement;
  Walk walk;
};

// Plans for one choice of which ranks share a host.
class BlockPlanner {
 public:
  BlockPlanner(const CostModel& model, SlotGrid grid, const OrderOptions& options)
      : model_(model),
        grid_(std::move(grid)),
        options_(options),
        classes_(HostClasses(model.tree(), model.hosts())),
        in_tree_order_(BlockPlacement(model.tree(), model.hosts())) {
    for (size_t i = 0; i < model_.job().traffic.size(); ++i) {
      flows_ += static_cast<int64_t>(model_.flows(i).flows.size());
    }
  }

  int64_t evaluated() const { return evaluated_; }
  bool IsExhaustive() const {
    return !stopped_ && CountArrangements(classes_[0], kSearchAll) <= kSearchAll &&
           CountArrangements(classes_[0], kSearchAll) * (flows_ + 1) <= options_.effort * 4;
  }
  Placement SearchEverything() {
    evaluated_ += CountArrangements(classes_[0], kSearchAll);
    return SearchAll(model_, classes_[0]);
  }

  const Candidate& fastest() const { return fastest_; }

  // The walk of least score.
  Candidate BestWalk(int64_t effort) {
    left_ = std::max<int64_t>(8, effort / std::max<int64_t>(flows_, 1000));
    limit_ = left_;
    best_.placement.clear();
    if (grid_.axes.empty()) {
      Consider({});
      return best_;
    }
    std::vector<Walk> starts = PlainWalks(grid_);
    for (const Walk& walk : starts) Consider(walk);
    if (CountWalks(starts.size()) <= left_) {
      for (const Walk& inner : starts) {
        for (const Walk& outer : starts) ConsiderTiles(inner.inner, outer.outer);
      }
    } else {
      for (const Walk& walk : starts) Climb(walk);
    }
    return best_;
  }

  Placement Improve(const Candidate& from, int64_t effort) {
    if (stopped_) return from.placement;
    Random random(options_.seed);
    SearchLimits limits;
    limits.updates = effort;
    if (options_.progress) {
      limits.progress = [&](double share) { return Goes("exchanging hosts", share); };
    }
    Placement best = SearchLocally(model_, classes_[0], from.placement, random, limits);
    // Few hosts: from elsewhere as well, as walks may all lie in one valley.
    if (best.size() > 16) return best;
    double best_score = model_.Score(best).value();
    for (int i = 0; i < 8 && !stopped_; ++i) {
      Placement start = AsAllocated(best.size());
      random.Shuffle(start);
      Placement other = SearchLocally(model_, classes_[0], start, random, limits);
      double score = model_.Score(other).value();
      if (score >= best_score) continue;
      best_score = score;
      best = std::move(other);
    }
    return best;
  }

 private:
  bool Goes(const std::string& stage, double share) {
    stopped_ |= !options_.progress(stage, share);
    return !stopped_;
  }

  int64_t CountWalks(size_t orders) const {
    auto walks = static_cast<int64_t>(orders * orders);
    for (const GridAxis& axis : grid_.axes) {
      int divisors = 0;
      for (int i = 1; i <= axis.size; ++i) divisors += axis.size % i == 0 ? 1 : 0;
      walks *= divisors;
    }
    return walks;
  }

  // Every size of tile, for given orders.
  void ConsiderTiles(const std::vector<int>& inner, const std::vector<int>& outer) {
    Walk walk{std::vector<int>(grid_.axes.size(), 1), inner, outer};
    while (true) {
      Consider(walk);
      size_t axis = 0;
      for (; axis < grid_.axes.size(); ++axis) {
        int size = grid_.axes[axis].size;
        int& part = walk.tile[axis];
        do ++part;
        while (part <= size && size % part != 0);
        if (part <= size) break;
        part = 1;
      }
      if (axis == grid_.axes.size()) return;
    }
  }

  void Climb(Walk walk) {
    double score = Consider(walk);
    for (bool better = true; better && left_ > 0;) {
      better = false;
      for (const Walk& next : Neighbours(grid_, walk)) {
        double other = Consider(next);
        if (other >= score) continue;
        score = other;
        walk = next;
        better = true;
        break;
      }
    }
  }

  double Consider(const Walk& walk) {
    std::vector<int32_t> visit;
    int tile = 1;
    if (grid_.axes.empty()) {
      visit = AsAllocated(static_cast<size_t>(model_.blocks().slots));
    } else {
      visit = Visit(grid_, walk);
      tile = walk.TileSlots();
    }
    double least = ConsiderPacked(walk, visit, tile);
    // A walk of whole axes may as well be packed by its fastest axis, or not at all: the block
    // order.
    if (tile == grid_.slots() && !grid_.axes.empty()) {
      int fastest = grid_.axes[static_cast<size_t>(walk.inner[0])].size;
      for (int part : {fastest, 1}) least = std::min(least, ConsiderPacked(walk, visit, part));
    }
    return least;
  }

  double ConsiderPacked(const Walk& walk, const std::vector<int32_t>& visit, int tile) {
    if (stopped_) return std::numeric_limits<double>::infinity();
    std::vector<int32_t> hosts = PackHosts(classes_, in_tree_order_, tile);
    Placement placement(hosts.size());
    for (size_t i = 0; i < hosts.size(); ++i) {
      placement[i < visit.size() ? static_cast<size_t>(visit[i]) : i] = hosts[i];
    }
    PlacementScore score = model_.Score(placement);
    ++evaluated_;
    --left_;
    bool is_first = best_.placement.empty();
    if (is_first || score.value() < best_.score.value()) best_ = {score, placement, walk};
    if (is_first || score.seconds < fastest_.score.seconds) fastest_ = {score, placement, walk};
    if (options_.progress && evaluated_ % 16 == 0) {
      double done = static_cast<double>(limit_ - std::max<int64_t>(left_, 0));
      Goes("walking the grid", done / static_cast<double>(limit_));
    }
    return score.value();
  }

  const CostModel& model_;
  const SlotGrid grid_;
  const OrderOptions& options_;
  const std::vector<std::vector<int32_t>> classes_;
  const std::vector<int32_t> in_tree_order_;
  int64_t flows_ = 0;
  int64_t left_ = 0, limit_ = 1;  // evaluations
  int64_t evaluated_ = 0;
  bool stopped_ = false;      // by `progress`
  Candidate best_, fastest_;  // by score, by time alone
};

struct BlockChoice {
  RankBlocks blocks;
  SlotGrid grid;
  std::string name;  // empty: consecutive ranks
};

std::string NameOf(const BlockShape& shape) {
  std::string name;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    absl::StrAppend(&name, name.empty() ? "" : " x ", ToString(static_cast<Axis>(i)), " ",
                    shape[i]);
  }
  return name;
}

std::vector<BlockChoice> Choices(const Job& job, RankBlocks consecutive, bool regroup) {
  int gpus = consecutive.gpus;
  std::vector<BlockChoice> choices;
  std::optional<BlockShape> shape = ContiguousShape(job.mesh, gpus);
  choices.push_back(
      {std::move(consecutive), shape.has_value() ? GridOf(job.mesh, *shape) : SlotGrid{}, ""});
  if (!regroup) return choices;
  for (const BlockShape& other : AllShapes(job.mesh, gpus)) {
    if (shape.has_value() && other == *shape) continue;
    choices.push_back({BlocksOf(job.mesh, other), GridOf(job.mesh, other), NameOf(other)});
  }
  return choices;
}

PlannedOrder Finish(const CostModel& model, const Placement& placement) {
  PlannedOrder planned;
  planned.order = OrderOf(model, placement);
  planned.cost = model.Evaluate(placement);
  planned.bound = LowerBound(model);
  return planned;
}

PlannedOrder PlanBlocks(const CostModel& model, const SlotGrid& grid, const OrderOptions& options,
                        int64_t effort) {
  BlockPlanner planner(model, grid, options);
  Candidate walked = planner.BestWalk(effort);
  absl::Duration walk_time = model.Evaluate(walked.placement).exposed;
  Placement placement;
  std::string how;
  if (planner.IsExhaustive()) {
    placement = planner.SearchEverything();
    how = "the best of all arrangements";
  } else {
    placement = planner.Improve(walked, effort);
    if (planner.fastest().score.seconds < model.Score(placement).seconds * (1 - 1e-6)) {
      walked = planner.fastest();
      placement = walked.placement;
    }
    how = grid.axes.empty() ? "hosts in the order of the switch tree" : Describe(grid, walked.walk);
    int moved = 0;
    for (size_t i = 0; i < placement.size(); ++i) moved += placement[i] != walked.placement[i];
    if (moved > 0) absl::StrAppend(&how, "; then ", moved, " hosts exchanged");
  }
  PlannedOrder planned = Finish(model, placement);
  planned.how = how;
  planned.evaluated = planner.evaluated();
  planned.walked = walk_time;
  return planned;
}

}  // namespace

int GpusOf(const Job& job, const Fabric& fabric, const std::vector<NodeId>& hosts) {
  if (job.node.gpus > 0 || hosts.empty()) return std::max(1, job.node.gpus);
  return std::max(1, fabric.nics(hosts[0]));
}

absl::StatusOr<RankBlocks> DefaultBlocks(const Job& job, const Fabric& fabric,
                                         const std::vector<NodeId>& hosts) {
  WEFT_RETURN_IF_ERROR(job.Validate());
  if (hosts.empty()) return absl::InvalidArgumentError("the allocation has no host");
  int gpus = GpusOf(job, fabric, hosts), world = job.mesh.ranks();
  if (world % gpus != 0) {
    return absl::InvalidArgumentError(absl::StrCat(job.mesh.Describe(), " is ", world,
                                                   " ranks, which does not fill hosts of ", gpus,
                                                   " GPUs (node.gpus; default: one a NIC)"));
  }
  return RankBlocks::Contiguous(world, gpus);
}

absl::StatusOr<PlannedOrder> PlanOrder(const CutTree& tree, const Job& job,
                                       const std::vector<NodeId>& hosts,
                                       const OrderOptions& options) {
  WEFT_ASSIGN_OR_RETURN(RankBlocks consecutive, DefaultBlocks(job, tree.fabric(), hosts));
  std::vector<BlockChoice> choices = Choices(job, std::move(consecutive), options.regroup);
  size_t chosen = 0;
  if (choices.size() > 1) {
    // A walk each, with a share of the effort; then all of it for the best.
    double least = std::numeric_limits<double>::infinity();
    for (size_t i = 0; i < choices.size(); ++i) {
      absl::StatusOr<CostModel> created =
          CostModel::Create(tree, job, choices[i].blocks, hosts, options.balance);
      // Ranks of these blocks talk between NICs that nothing joins; those of others may not.
      if (absl::IsFailedPrecondition(created.status())) continue;
      WEFT_RETURN_IF_ERROR(created.status());
      const CostModel& model = *created;
      BlockPlanner planner(model, choices[i].grid, options);
      Candidate walked = planner.BestWalk(options.effort / static_cast<int64_t>(choices.size()));
      // Scores leave out what no order changes; blocks do change it.
      double seconds = absl::ToDoubleSeconds(model.Evaluate(walked.placement).exposed);
      if (seconds >= least * (1 - 1e-9)) continue;
      least = seconds;
      chosen = i;
    }
  }
  const BlockChoice& choice = choices[chosen];
  WEFT_ASSIGN_OR_RETURN(CostModel model,
                        CostModel::Create(tree, job, choice.blocks, hosts, options.balance));
  PlannedOrder planned = PlanBlocks(model, choice.grid, options, options.effort);
  if (!choice.name.empty()) planned.how = absl::StrCat(choice.name, " in a host; ", planned.how);
  return planned;
}

}  // namespace weft::topology
