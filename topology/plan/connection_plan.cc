#include "topology/plan/connection_plan.h"

#include <algorithm>
#include <filesystem>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/status.h"
#include "topology/ecmp/fingerprint.h"

namespace weft::topology {
namespace {

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
  std::map<std::string, size_t> numbers;
  for (size_t i = 0; i < text_.hosts.size(); ++i) {
    numbers[text_.hosts[i].name] = i;
    for (size_t nic = 0; nic < text_.hosts[i].addresses.size(); ++nic) {
      places_[text_.hosts[i].addresses[nic]] = {i, static_cast<int>(nic)};
    }
  }
  for (size_t i = 0; i < text_.flows.size(); ++i) {
    const ConnectionPlanFlow& flow = text_.flows[i];
    const auto address = [&](const std::string& host, int nic) {
      return text_.hosts[numbers[host]].addresses[static_cast<size_t>(nic)];
    };
    of_ranks_[{flow.rank, flow.peer}].push_back(i);
    host_of_rank_.try_emplace(flow.rank, flow.source);
    host_of_rank_.try_emplace(flow.peer, flow.target);
    of_addresses_[{address(flow.source, flow.source_nic), address(flow.target, flow.target_nic)}]
        .push_back(i);
    usual_seconds_ += flow.way.seconds / static_cast<double>(text_.flows.size());
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

absl::StatusOr<ConnectionPlan::Leaves> ConnectionPlan::LeavesOf(const PathEnds& ends) const {
  WEFT_ASSIGN_OR_RETURN(Place source, Find(ends.source));
  WEFT_ASSIGN_OR_RETURN(Place target, Find(ends.target));
  return Leaves{text_.hosts[source.host].leaves[static_cast<size_t>(source.nic)],
                text_.hosts[target.host].leaves[static_cast<size_t>(target.nic)]};
}

std::vector<PathWay>* ConnectionPlan::SparesOf(const Leaves& leaves) {
  auto found = text_.spares.find(leaves);
  return found == text_.spares.end() || found->second.empty() ? nullptr : &found->second;
}

bool ConnectionPlan::HasFailed(const Leaves& leaves, const PathWay& way) const {
  auto found = failures_.find(leaves);
  return found != failures_.end() &&
         std::any_of(found->second.begin(), found->second.end(),
                     [&](const Failure& one) { return one.choices == way.choices; });
}

// Of the spare ways that are not of `left` and have not failed; where there is none, what was left,
// then what failed, first. Null: there are no spare ways, or only the last of `left`.
// A planned flow asks first for what planned flows leave: nobody knows how little the connections
// beyond the plan carry.
PathWay* ConnectionPlan::LeastLoaded(const Leaves& leaves, absl::Span<const PathWay> left,
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
  WEFT_ASSIGN_OR_RETURN(const Leaves leaves, LeavesOf(ends));
  std::vector<PathWay> ways;
  std::lock_guard lock(mutex_);
  // What was planned, but for what has failed since.
  const auto add = [&](const PathWay& planned) {
    PathWay* other = HasFailed(leaves, planned)
                         ? LeastLoaded(leaves, absl::MakeConstSpan(&planned, 1), true)
                         : nullptr;
    ways.push_back(other != nullptr ? *other : planned);
    ways.back().is_planned = true;
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
  WEFT_ASSIGN_OR_RETURN(const Leaves leaves, LeavesOf(ends));
  std::lock_guard lock(mutex_);
  const PathWay* best = LeastLoaded(leaves, {}, false);
  if (best == nullptr) return std::vector<PathWay>();
  return std::vector<PathWay>(static_cast<size_t>(count), *best);
}

absl::StatusOr<std::vector<PathWay>> ConnectionPlan::Spares(const PathEnds& ends) {
  WEFT_ASSIGN_OR_RETURN(const Leaves leaves, LeavesOf(ends));
  std::lock_guard lock(mutex_);
  const std::vector<PathWay>* spares = SparesOf(leaves);
  std::vector<PathWay> out;
  if (spares != nullptr) out = *spares;
  std::stable_sort(out.begin(), out.end(), [&](const PathWay& a, const PathWay& b) {
    return std::pair(HasFailed(leaves, a), a.seconds) < std::pair(HasFailed(leaves, b), b.seconds);
  });
  return out;
}

void ConnectionPlan::Fails(const PathEnds& ends, const PathWay& failed, absl::Time now) {
  const absl::StatusOr<Leaves> leaves = LeavesOf(ends);
  if (!leaves.ok()) return;
  std::lock_guard lock(mutex_);
  std::vector<Failure>& failures = failures_[*leaves];
  const auto is_past = [&](const Failure& one) {
    return one.choices == failed.choices || now - one.since > kFailedFor;
  };
  failures.erase(std::remove_if(failures.begin(), failures.end(), is_past), failures.end());
  if (failures.size() >= kFailedMost) failures.erase(failures.begin());
  failures.push_back({failed.choices, now});
}

absl::StatusOr<PathWay> ConnectionPlan::Instead(const PathEnds& ends, const PathWay& failed,
                                                absl::Time now) {
  Fails(ends, failed, now);
  return Another(ends, absl::MakeConstSpan(&failed, 1));
}

absl::StatusOr<PathWay> ConnectionPlan::Another(const PathEnds& ends,
                                                absl::Span<const PathWay> left) {
  WEFT_ASSIGN_OR_RETURN(const Leaves leaves, LeavesOf(ends));
  std::lock_guard lock(mutex_);
  const bool is_planned = !left.empty() && left.back().is_planned;
  PathWay* other = LeastLoaded(leaves, left, is_planned);
  if (other == nullptr) return left.empty() ? PathWay() : left.back();
  (is_planned ? other->seconds : other->unplanned) += usual_seconds_;
  PathWay out = *other;
  out.is_planned = is_planned;
  return out;
}

void ConnectionPlan::Answers(const PathEnds& ends, const PathWay& way) {
  const absl::StatusOr<Leaves> leaves = LeavesOf(ends);
  if (!leaves.ok()) return;
  std::lock_guard lock(mutex_);
  auto found = failures_.find(*leaves);
  if (found == failures_.end()) return;
  std::vector<Failure>& failures = found->second;
  failures.erase(std::remove_if(failures.begin(), failures.end(),
                                [&](const Failure& one) { return one.choices == way.choices; }),
                 failures.end());
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
    return hash != text_.hashes.end() && hash->second.Select(tuple, choice.count) == choice.index;
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
