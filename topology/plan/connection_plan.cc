#include "topology/plan/connection_plan.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/status.h"

namespace weft::topology {
namespace {

constexpr size_t kNamesShown = 4;

// Null: there is none but `but`.
PathWay* LeastLoaded(std::vector<PathWay>& ways, const PathWay* but) {
  PathWay* best = nullptr;
  for (PathWay& way : ways) {
    if (but != nullptr && way.choices == but->choices) continue;
    if (best == nullptr || way.seconds < best->seconds) best = &way;
  }
  return best;
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

absl::StatusOr<std::string> ConnectionPlan::HostOf(const IpAddress& address) const {
  WEFT_ASSIGN_OR_RETURN(Place place, Find(address));
  return text_.hosts[place.host].name;
}

absl::StatusOr<std::vector<PathWay>*> ConnectionPlan::Spares(const PathEnds& ends) {
  WEFT_ASSIGN_OR_RETURN(Place source, Find(ends.source));
  WEFT_ASSIGN_OR_RETURN(Place target, Find(ends.target));
  auto found =
      text_.spares.find({text_.hosts[source.host].leaves[static_cast<size_t>(source.nic)],
                         text_.hosts[target.host].leaves[static_cast<size_t>(target.nic)]});
  if (found == text_.spares.end() || found->second.empty()) return nullptr;
  return &found->second;
}

absl::StatusOr<std::vector<PathWay>> ConnectionPlan::Take(const PathEnds& ends, int count) {
  WEFT_ASSIGN_OR_RETURN(Place source, Find(ends.source));
  WEFT_ASSIGN_OR_RETURN(Place target, Find(ends.target));
  if (source.host == target.host) return std::vector<PathWay>();
  std::vector<PathWay> ways;
  auto of_ranks = of_ranks_.find({ends.rank, ends.peer});
  if (ends.rank >= 0 && of_ranks != of_ranks_.end()) {
    // A link of ranks has one NIC at each end; flows of other rails are other transports'.
    for (size_t index : of_ranks->second) {
      const ConnectionPlanFlow& flow = text_.flows[index];
      if (flow.source_nic == source.nic && flow.target_nic == target.nic &&
          flow.source == text_.hosts[source.host].name &&
          flow.target == text_.hosts[target.host].name) {
        ways.push_back(flow.way);
      }
    }
    if (!ways.empty()) return ways;
  }
  std::lock_guard lock(mutex_);
  auto of_addresses = of_addresses_.find({ends.source, ends.target});
  if (ends.rank < 0 && of_addresses != of_addresses_.end()) {
    size_t& next = next_[{ends.source, ends.target}];
    if (next < of_addresses->second.size()) {
      // Flows of one pair of ranks are one connection's.
      const ConnectionPlanFlow& first = text_.flows[of_addresses->second[next]];
      for (; next < of_addresses->second.size(); ++next) {
        const ConnectionPlanFlow& flow = text_.flows[of_addresses->second[next]];
        if (flow.rank != first.rank || flow.peer != first.peer) break;
        ways.push_back(flow.way);
      }
      return ways;
    }
  }
  WEFT_ASSIGN_OR_RETURN(std::vector<PathWay> * spares, Spares(ends));
  for (int i = 0; spares != nullptr && i < count; ++i) {
    PathWay* best = LeastLoaded(*spares, nullptr);
    best->seconds += usual_seconds_ / count;
    ways.push_back(*best);
  }
  return ways;
}

absl::StatusOr<std::vector<PathWay>> ConnectionPlan::Answer(const PathEnds& ends, int count) {
  std::lock_guard lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(std::vector<PathWay> * spares, Spares(ends));
  if (spares == nullptr) return std::vector<PathWay>();
  return std::vector<PathWay>(static_cast<size_t>(count), *LeastLoaded(*spares, nullptr));
}

absl::StatusOr<PathWay> ConnectionPlan::Instead(const PathEnds& ends, const PathWay& failed) {
  std::lock_guard lock(mutex_);
  WEFT_ASSIGN_OR_RETURN(std::vector<PathWay> * spares, Spares(ends));
  PathWay* other = spares != nullptr ? LeastLoaded(*spares, &failed) : nullptr;
  if (other == nullptr) return failed;
  other->seconds += usual_seconds_;
  return *other;
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
