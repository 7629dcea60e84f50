#include "topology/plan/connection_plan.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/status.h"
#include "topology/ecmp/fingerprint.h"

namespace weft::topology {
namespace {

// What a way may be more loaded than another and still take its turn in answering.
constexpr double kAsLittleLoaded = 0.05;

constexpr size_t kNamesShown = 4;

// Whether the files beside a plan are those that it was made for.
absl::Status CheckFingerprint(const std::string& folder, const std::string& fingerprint,
                              const std::string& origin) {
  if (fingerprint.empty()) return absl::OkStatus();  // a plan that was made by hand
  std::string all;
  for (const char* name : {"fabric.toml", "hashes.txt"}) {
    absl::StatusOr<std::string> text = ReadFile((std::filesystem::path(folder) / name).string());
    if (!text.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(origin, " cannot be told from a stale plan: of what it was planned for, ",
                       text.status().message(), "; a plan directory is copied as a whole"));
    }
    all += *text;
  }
  const std::string own = Fingerprint(all);
  if (own == fingerprint) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      origin, " is stale: it was planned for another fabric.toml or hashes.txt (fingerprint ",
      fingerprint, ") than those beside it (", own, "); plan again with weft-plan paths --out ",
      folder));
}

}  // namespace

std::string PathWay::ToString() const {
  if (choices.empty()) return "direct";
  return absl::StrJoin(choices, " ", [](std::string* out, const PathChoice& choice) {
    absl::StrAppend(out, choice.at, ":", choice.index, "/", choice.count);
  });
}

ConnectionPlan::ConnectionPlan(ConnectionPlanText text, std::string origin)
    : text_(std::move(text)), origin_(std::move(origin)) {
  for (size_t i = 0; i < text_.hosts.size(); ++i) {
    numbers_[text_.hosts[i].name] = i;
    for (size_t nic = 0; nic < text_.hosts[i].addresses.size(); ++nic) {
      places_[text_.hosts[i].addresses[nic]] = {i, static_cast<int>(nic)};
    }
  }
  for (auto& [_, ways] : text_.detours) {
    for (auto& [flow, way] : ways) {
      way.flow = flow;
      way.is_planned = true;
    }
  }
  for (size_t i = 0; i < text_.flows.size(); ++i) {
    text_.flows[i].way.flow = static_cast<int>(i);
    text_.flows[i].way.is_planned = true;
    const ConnectionPlanFlow& flow = text_.flows[i];
    const auto address = [&](const std::string& host, int nic) {
      return text_.hosts[numbers_[host]].addresses[static_cast<size_t>(nic)];
    };
    of_ranks_[{flow.rank, flow.peer}].push_back(i);
    host_of_rank_.try_emplace(flow.rank, flow.source);
    host_of_rank_.try_emplace(flow.peer, flow.target);
    of_addresses_[{address(flow.source, flow.source_nic), address(flow.target, flow.target_nic)}]
        .push_back(i);
    usual_seconds_ += flow.way.seconds / static_cast<double>(text_.flows.size());
  }
  LearnMembers();
}

void ConnectionPlan::LearnMembers() {
  std::map<std::pair<LeafPair, uint32_t>, Members> known;
  const auto learn = [&](const LeafPair& leaves, const PathWay& way) {
    for (const PathChoice& one : way.choices) {
      if (one.at != leaves.first || one.to.empty()) continue;
      known[{leaves, one.count}][one.index] = one.to;
    }
  };
  for (const auto& [leaves, ways] : text_.spares) {
    for (const PathWay& way : ways) learn(leaves, way);
  }
  for (const ConnectionPlanFlow& flow : text_.flows) learn(LeavesOf(flow), flow.way);
  for (const auto& [_, ways] : text_.detours) {
    for (const auto& [flow, way] : ways) {
      learn(LeavesOf(text_.flows[static_cast<size_t>(flow)]), way);
    }
  }
  // Each pair of leaves knows but some: sets that do not contradict each other are the same.
  for (const auto& [key, members] : known) {
    const auto agrees = [&own = members](const Members& set) {
      return std::all_of(own.begin(), own.end(), [&](const auto& one) {
        const auto other = set.find(one.first);
        return other == set.end() || other->second == one.second;
      });
    };
    std::vector<Members>& sets = sets_[{key.first.first, key.second}];
    auto set = std::find_if(sets.begin(), sets.end(), agrees);
    if (set == sets.end()) set = sets.emplace(set);
    set->insert(members.begin(), members.end());
    set_of_[key] = static_cast<size_t>(set - sets.begin());
  }
}

absl::StatusOr<std::shared_ptr<ConnectionPlan>> ConnectionPlan::Load(const std::string& folder) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<ConnectionPlan>> known;
  const std::string path =
      (std::filesystem::path(folder) / std::string(kConnectionPlanFile)).string();
  std::lock_guard lock(mutex);
  if (std::shared_ptr<ConnectionPlan> plan = known[path].lock()) return plan;
  absl::StatusOr<std::string> text = ReadFile(path);
  if (!text.ok()) {
    return Annotate(text.status(),
                    absl::StrCat("the setting plan (weft-plan paths --out makes one)"));
  }
  WEFT_ASSIGN_OR_RETURN(ConnectionPlanText parsed, ParseConnectionPlan(*text, path));
  WEFT_RETURN_IF_ERROR(CheckFingerprint(folder, parsed.fingerprint, path));
  auto plan = std::make_shared<ConnectionPlan>(std::move(parsed), path);
  known[path] = plan;
  return plan;
}

std::string ConnectionPlan::HostNames() const {
  std::string names;
  for (size_t i = 0; i < text_.hosts.size() && i < kNamesShown; ++i) {
    const ConnectionPlanHost& host = text_.hosts[i];
    absl::StrAppend(&names, i > 0 ? ", " : "", host.name, " (",
                    host.addresses.empty() ? "no address" : host.addresses[0].ToString(), ")");
  }
  if (text_.hosts.size() > kNamesShown) {
    absl::StrAppend(&names, " and ", text_.hosts.size() - kNamesShown, " more");
  }
  return names;
}

absl::StatusOr<ConnectionPlan::Place> ConnectionPlan::Find(const IpAddress& address) const {
  auto found = places_.find(address);
  if (found != places_.end()) return found->second;
  return absl::FailedPreconditionError(absl::StrCat(
      origin_, " is a plan for other hosts: it does not name ", address.ToString(), "; it is for ",
      HostNames(), "; plan again with weft-plan paths, or leave the setting plan out"));
}

absl::Status ConnectionPlan::CheckHost(const IpAddress& own) const { return Find(own).status(); }

absl::Status ConnectionPlan::CheckRank(const IpAddress& own, int rank, int ranks) const {
  WEFT_ASSIGN_OR_RETURN(const Place place, Find(own));
  if (ranks != text_.ranks) {
    return absl::FailedPreconditionError(
        absl::StrCat(origin_, " is a plan for ", text_.ranks, " ranks; this job has ", ranks,
                     "; plan again with weft-plan paths, or leave the setting plan out"));
  }
  const std::string& host = text_.hosts[place.host].name;
  const auto planned = host_of_rank_.find(rank);
  if (planned == host_of_rank_.end() || planned->second == host) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      origin_, " has rank ", rank, " on ", planned->second, ", but it runs on ", host, " (",
      own.ToString(),
      "): start the job in the plan's order, by weft-run --plan or the plan directory's "
      "slurm.hosts, openmpi.rankfile or torchrun.sh"));
}

absl::StatusOr<std::string> ConnectionPlan::HostOf(const IpAddress& address) const {
  WEFT_ASSIGN_OR_RETURN(Place place, Find(address));
  return text_.hosts[place.host].name;
}

bool ConnectionPlan::Passes(const PathWay& way, absl::Span<const std::string> switches) {
  return std::any_of(way.choices.begin(), way.choices.end(), [&](const PathChoice& choice) {
    return std::find(switches.begin(), switches.end(), choice.to) != switches.end();
  });
}

absl::StatusOr<ConnectionPlan::LeafPair> ConnectionPlan::LeavesOf(const PathEnds& ends) const {
  WEFT_ASSIGN_OR_RETURN(Place source, Find(ends.source));
  WEFT_ASSIGN_OR_RETURN(Place target, Find(ends.target));
  return LeafPair{text_.hosts[source.host].leaves[static_cast<size_t>(source.nic)],
                  text_.hosts[target.host].leaves[static_cast<size_t>(target.nic)]};
}

std::vector<PathWay>* ConnectionPlan::SparesOf(const LeafPair& leaves) {
  auto found = text_.spares.find(leaves);
  return found == text_.spares.end() || found->second.empty() ? nullptr : &found->second;
}

bool ConnectionPlan::HasFailed(const LeafPair& leaves, const PathWay& way) const {
  auto found = failures_.find(leaves);
  return found != failures_.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](const Failure& one) { return one.choices == way.choices; });
}

// A spare way that is not of `left` and has not failed; where there is none, what was left,
// then what failed, first. Null: there are no spare ways, or only the last of `left`.
// A planned flow asks first for what planned flows leave: nobody knows how little the connections
// beyond the plan carry.
PathWay* ConnectionPlan::LeastLoaded(const LeafPair& leaves, absl::Span<const PathWay> left,
                                     bool is_planned) {
  std::vector<PathWay>* spares = SparesOf(leaves);
  if (spares == nullptr) return nullptr;
  const auto failures = failures_.find(leaves);
  const auto failed_at = [&](const PathWay& way) {
    if (failures == failures_.end()) return absl::InfinitePast();
    for (const Failure& one : failures->second) {
      if (one.choices == way.choices) return one.since;
    }
    return absl::InfinitePast();
  };
  const auto left_at = [&](const PathWay& way) {
    for (size_t i = left.size(); i > 0; --i) {
      if (left[i - 1].choices == way.choices) return i;
    }
    return size_t{0};
  };
  PathWay* best = nullptr;
  const auto rank = [&](const PathWay& way) {
    return std::tuple(left_at(way), failed_at(way),
                      is_planned ? way.seconds : way.seconds + way.unplanned,
                      is_planned ? way.unplanned : 0);
  };
  for (PathWay& way : *spares) {
    if (!left.empty() && way.choices == left.back().choices) continue;
    if (best == nullptr || rank(way) < rank(*best)) best = &way;
  }
  return best;
}

absl::StatusOr<std::vector<PathWay>> ConnectionPlan::Take(const PathEnds& ends, int count) {
  WEFT_ASSIGN_OR_RETURN(Place source, Find(ends.source));
  WEFT_ASSIGN_OR_RETURN(Place target, Find(ends.target));
  if (source.host == target.host) return std::vector<PathWay>();
  WEFT_ASSIGN_OR_RETURN(const LeafPair leaves, LeavesOf(ends));
  std::vector<PathWay> ways;
  std::lock_guard lock(mutex_);
  // What was planned, but for what has failed since.
  const auto add = [&](const PathWay& planned) {
    const PathWay now = NowLocked(planned);
    PathWay* other =
        HasFailed(leaves, now) ? LeastLoaded(leaves, absl::MakeConstSpan(&now, 1), true) : nullptr;
    ways.push_back(other != nullptr ? *other : now);
    ways.back().is_planned = true;
    ways.back().flow = planned.flow;
    ways.back().rate = planned.rate;
  };
  auto of_ranks = of_ranks_.find({ends.rank, ends.peer});
  if (ends.rank >= 0 && of_ranks != of_ranks_.end()) {
    // A link of ranks has one NIC at each end; flows of other rails are other transports'.
    for (size_t index : of_ranks->second) {
      const ConnectionPlanFlow& flow = text_.flows[index];
      if (flow.source_nic == source.nic && flow.target_nic == target.nic &&
          flow.source == text_.hosts[source.host].name &&
          flow.target == text_.hosts[target.host].name) {
        add(flow.way);
      }
    }
    if (!ways.empty()) return ways;
  }
  auto of_addresses = of_addresses_.find({ends.source, ends.target});
  if (ends.rank < 0 && of_addresses != of_addresses_.end()) {
    size_t& next = next_[{ends.source, ends.target}];
    if (next < of_addresses->second.size()) {
      // Flows of one pair of ranks are one connection's.
      const ConnectionPlanFlow& first = text_.flows[of_addresses->second[next]];
      for (; next < of_addresses->second.size(); ++next) {
        const ConnectionPlanFlow& flow = text_.flows[of_addresses->second[next]];
        if (flow.rank != first.rank || flow.peer != first.peer) break;
        add(flow.way);
      }
      return ways;
    }
  }
  for (int i = 0; i < count; ++i) {
    PathWay* best = LeastLoaded(leaves, {}, false);
    if (best == nullptr) break;
    best->unplanned += usual_seconds_ / count;
    ways.push_back(*best);
  }
  return ways;
}

absl::StatusOr<std::vector<PathWay>> ConnectionPlan::Answer(const PathEnds& ends, int count) {
  WEFT_ASSIGN_OR_RETURN(const LeafPair leaves, LeavesOf(ends));
  std::lock_guard lock(mutex_);
  const PathWay* best = LeastLoaded(leaves, {}, false);
  if (best == nullptr) return std::vector<PathWay>();
  // In turn over those that are as little loaded, so that what answers loads none of them alone.
  const double most = (best->seconds + best->unplanned) * (1 + kAsLittleLoaded);
  std::vector<PathWay> alike;
  for (const PathWay& way : *SparesOf(leaves)) {
    if (way.seconds + way.unplanned <= most && !HasFailed(leaves, way)) alike.push_back(way);
  }
  if (alike.empty()) alike.push_back(*best);
  std::vector<PathWay> out;
  size_t& next = answered_[leaves];
  for (int i = 0; i < count; ++i) out.push_back(alike[next++ % alike.size()]);
  return out;
}

absl::StatusOr<std::vector<PathWay>> ConnectionPlan::Spares(const PathEnds& ends) {
  WEFT_ASSIGN_OR_RETURN(const LeafPair leaves, LeavesOf(ends));
  std::lock_guard lock(mutex_);
  const std::vector<PathWay>* spares = SparesOf(leaves);
  std::vector<PathWay> out;
  if (spares != nullptr) out = *spares;
  const std::vector<std::string> lost = reports_.LostFrom(leaves.first);
  const auto first_lost = std::stable_partition(
      out.begin(), out.end(), [&](const PathWay& way) { return !Passes(way, lost); });
  if (first_lost != out.begin()) out.erase(first_lost, out.end());
  for (PathWay& way : out) way = Without(way, leaves, lost);
  std::stable_sort(out.begin(), out.end(), [&](const PathWay& a, const PathWay& b) {
    return std::pair(HasFailed(leaves, a), a.seconds) < std::pair(HasFailed(leaves, b), b.seconds);
  });
  return out;
}

void ConnectionPlan::Fails(const PathEnds& ends, const PathWay& failed, absl::Time now) {
  const absl::StatusOr<LeafPair> leaves = LeavesOf(ends);
  if (!leaves.ok()) return;
  std::lock_guard lock(mutex_);
  MarkFailed(*leaves, failed, now);
  bool is_new = false;
  for (const PathChoice& one : failed.choices) {
    if (one.to.empty()) continue;
    is_new |=
        reports_.Report({one.to, leaves->first, leaves->second}, PathReports::State::kDropping);
  }
  Reported(is_new);
}

void ConnectionPlan::MarkFailed(const LeafPair& leaves, const PathWay& failed, absl::Time now) {
  std::vector<Failure>& failures = failures_[leaves];
  const auto is_past = [&](const Failure& one) {
    return one.choices == failed.choices || now - one.since > kFailedFor;
  };
  failures.erase(std::remove_if(failures.begin(), failures.end(), is_past), failures.end());
  if (failures.size() >= kFailedMost) failures.erase(failures.begin());
  failures.push_back({failed.choices, now});
}

absl::StatusOr<PathWay> ConnectionPlan::Instead(const PathEnds& ends, const PathWay& failed,
                                                absl::Time now) {
  WEFT_ASSIGN_OR_RETURN(const LeafPair leaves, LeavesOf(ends));
  {
    std::lock_guard lock(mutex_);
    MarkFailed(leaves, failed, now);
  }
  return Another(ends, absl::MakeConstSpan(&failed, 1));
}

absl::StatusOr<PathWay> ConnectionPlan::Another(const PathEnds& ends,
                                                absl::Span<const PathWay> left) {
  WEFT_ASSIGN_OR_RETURN(const LeafPair leaves, LeavesOf(ends));
  std::lock_guard lock(mutex_);
  const bool is_planned = !left.empty() && left.back().is_planned;
  const int flow = left.empty() ? -1 : left.back().flow;
  if (flow >= 0) {
    // As all of its flows go where the switch behind it carries nothing.
    for (const PathChoice& one : left.back().choices) {
      const auto detours = text_.detours.find(one.to);
      if (detours == text_.detours.end()) continue;
      const auto detour = detours->second.find(flow);
      if (detour == detours->second.end() || HasFailed(leaves, detour->second)) continue;
      const bool was_left = std::any_of(left.begin(), left.end(), [&](const PathWay& way) {
        return way.choices == detour->second.choices;
      });
      if (!was_left) return detour->second;
    }
  }
  PathWay* other = LeastLoaded(leaves, left, is_planned);
  if (other == nullptr) return left.empty() ? PathWay() : left.back();
  (is_planned ? other->seconds : other->unplanned) += usual_seconds_;
  PathWay out = *other;
  out.is_planned = is_planned;
  out.flow = flow;
  return out;
}

void ConnectionPlan::Answers(const PathEnds& ends, const PathWay& way) {
  const absl::StatusOr<LeafPair> leaves = LeavesOf(ends);
  if (!leaves.ok()) return;
  std::lock_guard lock(mutex_);
  bool is_new = false;
  for (const PathChoice& one : way.choices) is_new |= reports_.Passes(one.to);
  Reported(is_new);
  auto found = failures_.find(*leaves);
  if (found == failures_.end()) return;
  std::vector<Failure>& failures = found->second;
  failures.erase(std::remove_if(failures.begin(), failures.end(),
                                [&](const Failure& one) { return one.choices == way.choices; }),
                 failures.end());
}

bool ConnectionPlan::HasFailed(const PathEnds& ends, const PathWay& way) const {
  const absl::StatusOr<LeafPair> leaves = LeavesOf(ends);
  std::lock_guard lock(mutex_);
  return leaves.ok() && HasFailed(*leaves, way);
}

PathWay ConnectionPlan::Planned(const PathWay& way) const {
  return way.flow < 0 ? way : text_.flows[static_cast<size_t>(way.flow)].way;
}

ConnectionPlan::LeafPair ConnectionPlan::LeavesOf(const ConnectionPlanFlow& flow) const {
  const auto leaf = [&](const std::string& host, int nic) {
    return text_.hosts[numbers_.at(host)].leaves[static_cast<size_t>(nic)];
  };
  return {leaf(flow.source, flow.source_nic), leaf(flow.target, flow.target_nic)};
}

bool ConnectionPlan::IsRerouted(const PathWay& way) const {
  if (way.flow < 0) return false;
  const std::string leaf = LeavesOf(text_.flows[static_cast<size_t>(way.flow)]).first;
  std::lock_guard lock(mutex_);
  const std::vector<std::string> lost = reports_.LostFrom(leaf);
  return std::any_of(lost.begin(), lost.end(),
                     [&](const std::string& over) { return reports_.HasLeft(over, leaf); });
}

PathWay ConnectionPlan::Now(const PathWay& way) const {
  if (way.flow < 0) return way;
  std::lock_guard lock(mutex_);
  return NowLocked(Planned(way));
}

PathWay ConnectionPlan::NowLocked(const PathWay& planned) const {
  const LeafPair leaves = LeavesOf(text_.flows[static_cast<size_t>(planned.flow)]);
  const std::vector<std::string> lost = reports_.LostFrom(leaves.first);
  if (lost.empty()) return planned;
  PathWay way = planned;
  const auto detours = text_.detours.find(lost[0]);
  if (detours != text_.detours.end()) {
    const auto detour = detours->second.find(planned.flow);
    if (detour != detours->second.end()) way = detour->second;
  }
  const auto passes_lost = [&](const PathWay& one) { return Passes(one, lost); };
  if (passes_lost(way)) {
    // More than one is lost, which nothing was planned for: flows are dealt out by number.
    const auto spares = text_.spares.find(leaves);
    std::vector<const PathWay*> left;
    if (spares != text_.spares.end()) {
      for (const PathWay& spare : spares->second) {
        if (!passes_lost(spare)) left.push_back(&spare);
      }
    }
    if (left.empty()) return planned;
    way = *left[static_cast<size_t>(planned.flow) % left.size()];
    way.flow = planned.flow;
    way.is_planned = true;
  }
  return Without(way, leaves, lost);
}

// The way between `leaves` as the first numbers its next hops without those of `lost` that it has
// left.
PathWay ConnectionPlan::Without(const PathWay& way, const LeafPair& leaves,
                                absl::Span<const std::string> lost) const {
  PathWay out = way;
  for (PathChoice& choice : out.choices) {
    const auto hash = text_.hashes.find(choice.at);
    if (choice.at != leaves.first || hash == text_.hashes.end()) continue;
    // Flows of the members that are left stay where they are.
    if (hash->second.options().select == HashSelect::kResilient) continue;
    const auto set = set_of_.find({leaves, choice.count});
    if (set == set_of_.end()) continue;
    std::set<uint32_t> gone;  // as the plan, which knows all members, numbers them
    for (const auto& [index, to] : sets_.at({choice.at, choice.count})[set->second]) {
      const bool is_lost = std::find(lost.begin(), lost.end(), to) != lost.end();
      if (is_lost && reports_.HasLeft(to, choice.at)) gone.insert(index);
    }
    if (gone.size() >= choice.count) continue;
    choice.index -=
        static_cast<uint32_t>(std::distance(gone.begin(), gone.lower_bound(choice.index)));
    choice.count -= static_cast<uint32_t>(gone.size());
  }
  return out;
}

std::string ConnectionPlan::Reports() const {
  std::lock_guard lock(mutex_);
  return reports_.ToText();
}

std::string ConnectionPlan::WhyNow() const {
  std::lock_guard lock(mutex_);
  const std::string reports = reports_.Summary();
  return reports.empty() ? "nothing is reported of any switch"
                         : absl::StrCat("by the reports: ", reports);
}

absl::Status ConnectionPlan::Hear(absl::string_view reports) {
  std::lock_guard lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(const bool is_new, reports_.Merge(reports));
  Reported(is_new);
  return absl::OkStatus();
}

void ConnectionPlan::Reported(bool is_new) {
  if (is_new) reports_version_.fetch_add(1, std::memory_order_acq_rel);
}

void ConnectionPlan::Leaves(const std::string& leaf, const std::string& over, bool has_left) {
  std::lock_guard lock(mutex_);
  Reported(reports_.Report({over, leaf, "-"},
                           has_left ? PathReports::State::kLeft : PathReports::State::kGood));
}

bool ConnectionPlan::HasLeft(const std::string& leaf, const std::string& over) const {
  std::lock_guard lock(mutex_);
  return reports_.HasLeft(over, leaf);
}

size_t ConnectionPlan::failed() const {
  std::lock_guard lock(mutex_);
  size_t sum = 0;
  for (const auto& [_, failures] : failures_) sum += failures.size();
  return sum;
}

bool ConnectionPlan::Takes(const PathWay& way, const FiveTuple& tuple) const {
  return std::all_of(way.choices.begin(), way.choices.end(), [&](const PathChoice& choice) {
    auto hash = text_.hashes.find(choice.at);
    return hash != text_.hashes.end() && hash->second.Knows(tuple, choice.count) &&
           hash->second.Select(tuple, choice.count) == choice.index;
  });
}

std::optional<uint16_t> ConnectionPlan::Port(const PathWay& way, FiveTuple tuple, uint64_t salt,
                                             int nth, uint16_t first, uint16_t last) const {
  const uint32_t range = last - first + 1u;
  uint64_t state = salt;
  for (const IpAddress* address : {&tuple.source, &tuple.target}) {
    for (uint8_t byte : address->bytes) state = state * 31 + byte;
  }
  const uint64_t start = SplitMix64(state);
  for (uint32_t step = 0; step < range; ++step) {
    tuple.source_port = static_cast<uint16_t>(first + (start + step) % range);
    if (Takes(way, tuple) && nth-- == 0) return tuple.source_port;
  }
  return std::nullopt;
}

}  // namespace weft::topology
