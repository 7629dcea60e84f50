#include "topology/paths/port_search.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status.h"

namespace weft::topology {
namespace {

// What rounding may add to a sum of loads.
constexpr double kSlack = 1e-9;

}  // namespace

bool TakenPorts::Has(const Subflow& subflow, uint16_t port) const {
  auto found = ports_.find({subflow.source, subflow.target});
  return found != ports_.end() &&
         std::find(found->second.begin(), found->second.end(), port) != found->second.end();
}

void TakenPorts::Take(const Subflow& subflow) {
  ports_[{subflow.source, subflow.target}].push_back(subflow.port);
}

void TakenPorts::Release(const Subflow& subflow) {
  std::vector<uint16_t>& ports = ports_[{subflow.source, subflow.target}];
  ports.erase(std::find(ports.begin(), ports.end(), subflow.port));
}

PortSearch::PortSearch(const Tracer& tracer, const PathPlannerOptions& options, TakenPorts& taken,
                       std::vector<Subflow>& subflows, double target)
    : tracer_(tracer),
      options_(options),
      taken_(taken),
      subflows_(subflows),
      target_(target * (1 + kSlack)),
      loads_(tracer.fabric()),
      on_link_(static_cast<size_t>(tracer.fabric().links())),
      locked_(subflows.size()) {}

// Each subflow begins somewhere else, so that neighbours do not get the same ports, and steps far:
// ports in a row differ in a few bits, which bits of a linear hash may not depend on.
uint16_t PortSearch::Port(const Subflow& subflow, uint32_t step) {
  uint64_t state = uint64_t{subflow.flow} << 16 | subflow.subflow;
  const std::vector<uint16_t>& table = TablePorts(subflow);
  if (!table.empty()) return table[(SplitMix64(state) + step) % table.size()];
  return static_cast<uint16_t>(options_.port_first +
                               (SplitMix64(state) + step * Stride()) % Range());
}

// Those of the options' range, looked up once for each two ends.
const std::vector<uint16_t>& PortSearch::TablePorts(const Subflow& subflow) {
  static const std::vector<uint16_t> none;
  if (tracer_.KnowsAll()) return none;
  const auto [found, is_new] = table_ports_.try_emplace({subflow.source, subflow.target});
  if (!is_new) return found->second;
  for (uint16_t port : tracer_.TablePorts(subflow)) {
    if (port >= options_.port_first && port <= options_.port_last) found->second.push_back(port);
  }
  return found->second;
}

uint32_t PortSearch::Budget(const Subflow& subflow, int per_path) {
  // All that a table knows; there are few.
  const size_t known = TablePorts(subflow).size();
  if (known > 0) return static_cast<uint32_t>(known);
  int64_t paths = tracer_.routes().Paths(subflow.source, subflow.target);
  int64_t limit = std::min<int64_t>(options_.probes_max, Range());
  return static_cast<uint32_t>(std::min(limit, std::min<int64_t>(paths, limit) * per_path));
}

void PortSearch::Put(uint32_t index) {
  Subflow& subflow = subflows_[index];
  subflow.placed = true;
  taken_.Take(subflow);
  loads_.Add(subflow.links, subflow.bytes);
  for (LinkId link : subflow.links) on_link_[link.index()].push_back(index);
}

void PortSearch::Take(uint32_t index) {
  Subflow& subflow = subflows_[index];
  taken_.Release(subflow);
  loads_.Remove(subflow.links, subflow.bytes);
  for (LinkId link : subflow.links) {
    std::vector<uint32_t>& on = on_link_[link.index()];
    on.erase(std::find(on.begin(), on.end(), index));
  }
}

absl::Status PortSearch::Place() {
  for (uint32_t i = 0; i < subflows_.size(); ++i) {
    if (subflows_[i].placed && !subflows_[i].open) {
      taken_.Release(subflows_[i]);  // Put() takes it again
      Put(i);
    }
  }
  for (uint32_t i = 0; i < subflows_.size(); ++i) {
    if (!subflows_[i].placed && !subflows_[i].open) WEFT_RETURN_IF_ERROR(PlaceOne(i));
  }
  return absl::OkStatus();
}

bool PortSearch::PlaceAsWanted(Subflow& subflow, const FiveTuple& tuple) {
  // P(a path of n is not met in 24 n independent tries) = e^-24; where hashes are polarised many
  // never are, and trying is soon given up.
  uint32_t budget = Budget(subflow, 24);
  if (unmet_in_a_row_ >= 8 && TablePorts(subflow).empty())
    budget = std::max(budget / 32, std::min(budget, 64u));
  FiveTuple probe = tuple;
  PathLinks links;
  double best = std::numeric_limits<double>::infinity();
  for (uint32_t step = 0; step < budget; ++step) {
    probe.source_port = Port(subflow, step);
    ++probes_;
    bool unknown = false;
    if (!tracer_.Trace(subflow, probe, /*wanted=*/true, links, &unknown)) continue;
    if (taken_.Has(subflow, probe.source_port)) continue;
    double worst = loads_.WorstWith(links, subflow.bytes);
    if (worst < best) {
      best = worst;
      subflow.port = probe.source_port;
      subflow.links = links;
    }
    if (worst <= target_) return true;
  }
  return best <= target_;
}

absl::Status PortSearch::PlaceOne(uint32_t index) {
  Subflow& subflow = subflows_[index];
  FiveTuple probe = tracer_.Tuple(subflow);
  bool wanted = subflow.wanted[0] != NodeId();
  // If there is no port for all of the path, then any way on from the first switch that has room.
  for (bool relaxed : {false, true}) {
    if (!wanted || (relaxed && subflow.wanted[1] == NodeId())) break;
    if (relaxed) subflow.wanted[1] = NodeId();
    if (!PlaceAsWanted(subflow, probe)) continue;
    unmet_in_a_row_ = 0;
    Put(index);
    return absl::OkStatus();
  }
  bool unknown = false;
  std::vector<Move> moves = Alternatives(index, target_, &unknown);
  if (moves.empty() && unknown) {
    subflow.open = true;
    subflow.port = 0;
    subflow.links.clear();
    return absl::OkStatus();
  }
  unmet_ += wanted ? 1 : 0;
  unmet_in_a_row_ += wanted ? 1 : 0;
  if (moves.empty()) {
    // A path that exists, but no port that may be used for it.
    PathLinks links;
    std::string who = absl::StrCat("flow ", subflow.flow, " from ",
                                   tracer_.fabric().node(subflow.source.host).name, " to ",
                                   tracer_.fabric().node(subflow.target.host).name);
    if (!tracer_.Trace(subflow, probe, /*wanted=*/false, links)) {
      return absl::NotFoundError(absl::StrCat(
          who, ": there is no way through the links that are up: the fabric is partitioned"));
    }
    return absl::FailedPreconditionError(
        absl::StrCat(who, ": all ", Range(), " source ports ", options_.port_first, "..",
                     options_.port_last, " are taken by other flows between these two; give a ",
                     "larger range or fewer queue pairs"));
  }
  subflow.port = moves[0].port;
  subflow.links = moves[0].links;
  Put(index);
  return absl::OkStatus();
}

std::vector<PortSearch::Move> PortSearch::Alternatives(uint32_t index, double enough,
                                                       bool* unknown) {
  const Subflow& subflow = subflows_[index];
  uint32_t budget = std::min(Budget(subflow, 6), 2048u);
  // A few ports at least, where there is one path: some may be taken.
  if (TablePorts(subflow).empty()) budget = std::max(budget, std::min(Range(), 64u));
  FiveTuple probe = tracer_.Tuple(subflow);
  std::vector<Move> best;
  Move move{index, 0, 0, {}};
  for (uint32_t step = 0; step < budget; ++step) {
    probe.source_port = Port(subflow, step);
    ++probes_;
    bool is_unknown = false;
    if (!tracer_.Trace(subflow, probe, /*wanted=*/false, move.links, &is_unknown)) {
      if (!is_unknown) return best;
      if (unknown != nullptr) *unknown = true;
      continue;
    }
    move.worst = loads_.WorstWith(move.links, subflow.bytes);
    if (best.size() == kAlternatives && move.worst >= best.back().worst) continue;
    if (taken_.Has(subflow, probe.source_port)) continue;
    bool known = std::any_of(best.begin(), best.end(),
                             [&](const Move& other) { return other.links == move.links; });
    if (known) continue;
    move.port = probe.source_port;
    auto place = std::upper_bound(best.begin(), best.end(), move.worst,
                                  [](double worst, const Move& m) { return worst < m.worst; });
    best.insert(place, move);
    if (best.size() > kAlternatives) best.pop_back();
    if (move.worst <= enough) return best;
  }
  return best;
}

void PortSearch::Apply(Move& move) {
  Take(move.subflow);
  Subflow& subflow = subflows_[move.subflow];
  std::swap(subflow.port, move.port);
  std::swap(subflow.links, move.links);
  Put(move.subflow);
}

void PortSearch::UndoTo(size_t size) {
  while (journal_.size() > size) {
    Apply(journal_.back());
    locked_[journal_.back().subflow] = 0;
    journal_.pop_back();
  }
}

bool PortSearch::Lower(LinkId link, double worst, int depth) {
  double below = worst * (1 - kSlack);
  std::vector<std::pair<uint32_t, std::vector<Move>>> open;
  for (uint32_t index : std::vector<uint32_t>(on_link_[link.index()])) {
    if (locked_[index] || probes_ > probes_end_) continue;
    Take(index);  // its own load is not in its way
    std::vector<Move> moves = Alternatives(index, std::min(target_, below));
    Put(index);
    auto leaves = [&](const Move& move) {
      return std::find(move.links.begin(), move.links.end(), link) == move.links.end();
    };
    moves.erase(
        std::remove_if(moves.begin(), moves.end(), [&](const Move& move) { return !leaves(move); }),
        moves.end());
    if (moves.empty()) continue;
    if (moves[0].worst < below) {
      locked_[index] = 1;
      journal_.push_back(moves[0]);
      Apply(journal_.back());
      if (loads_[link] < below) return true;
    } else {
      open.emplace_back(index, std::move(moves));
    }
  }
  if (depth == 0) return false;
  for (auto& [index, moves] : open) {
    if (locked_[index]) continue;
    for (Move& move : moves) {
      size_t before = journal_.size();
      PathLinks path = move.links;
      locked_[index] = 1;
      journal_.push_back(move);
      Apply(journal_.back());
      bool good = loads_[link] < below;
      for (LinkId other : path) {
        if (!good || probes_ > probes_end_) break;
        good = loads_[other] < below || Lower(other, worst, depth - 1);
      }
      if (good) return true;
      UndoTo(before);
    }
  }
  return false;
}

void PortSearch::Improve() {
  probes_end_ = probes_ + options_.search_probes;
  while (probes_ <= probes_end_) {
    LinkId link = loads_.Fullest();
    double worst = loads_[link];
    if (worst <= target_) return;
    journal_.clear();
    std::fill(locked_.begin(), locked_.end(), 0);
    if (!Lower(link, worst, kDepth)) {
      UndoTo(0);
      return;
    }
  }
}

}  // namespace weft::topology
