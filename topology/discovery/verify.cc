#include "topology/discovery/verify.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/status.h"
#include "topology/discovery/trace.h"
#include "topology/fabric/file.h"
#include "topology/fabric/routes.h"
#include "topology/plan/connection_plan.h"

namespace weft::topology {
namespace {

constexpr int kSilentMost = 3;  // first questions of a tier without an answer: it is asked no more
constexpr int kTriesPerFlow = 8;
constexpr int kRounds = 2;  // of one question
constexpr size_t kTiersShown = 4;

// Asks about the flows of one NIC.
class NicVerifier {
 public:
  NicVerifier(const Routes& routes, const FabricHashes& hashes, const HashFile& known,
              Endpoint source, std::vector<Endpoint> targets, const VerifyOptions& options)
      : routes_(routes),
        fabric_(routes.fabric()),
        hashes_(hashes),
        known_(known),
        source_(source),
        targets_(std::move(targets)),
        options_(options) {
    // Tiers are known before they are asked, so that one that nobody came to is not forgotten.
    std::set<NodeId> leaves;
    for (Endpoint target : targets_) {
      if (!leaves.insert(fabric_.link(fabric_.Ports(target)[0]).target).second) continue;
      std::vector<NodeId> waiting;
      std::map<NodeId, bool> met;
      for (LinkId link : routes_.First(source_, target)) {
        waiting.push_back(fabric_.link(link).target);
      }
      while (!waiting.empty()) {
        const NodeId at = waiting.back();
        waiting.pop_back();
        if (at == target.host || std::exchange(met[at], true)) continue;
        const auto next = routes_.Next(at, target);
        if (HasChoice(next)) TierOf(at);
        for (LinkId link : next) waiting.push_back(fabric_.link(link).target);
      }
    }
  }

  bool has_choice() const { return !tiers_.empty(); }
  bool done() const {
    return tries_ >= options_.flows * kTriesPerFlow * static_cast<int>(tiers_.size()) ||
           std::all_of(tiers_.begin(), tiers_.end(),
                       [&](const auto& one) { return !Wanted(one.second); });
  }

  // One flow, at each switch with a choice on its way whose tier has not been asked enough.
  absl::Status AskOne(Random& random, const AskName& ask, const Clock& clock, absl::Time deadline,
                      std::string& example) {
    ++tries_;
    const Endpoint target = targets_[random.Below(targets_.size())];
    auto port = static_cast<uint16_t>(0xC000 + random.Below(0x3000));
    FiveTuple tuple = hashes_.Tuple(source_, target, port, kRoceTargetPort, kProtocolUdp);
    if (!hashes_.KnowsAll()) {
      const std::vector<uint16_t> known = hashes_.TablePorts(tuple);
      if (!known.empty()) tuple.source_port = port = known[random.Below(known.size())];
    }
    WEFT_ASSIGN_OR_RETURN(std::vector<LinkId> path, hashes_.Path(routes_, source_, target, tuple));
    for (size_t i = 1; i + 1 < path.size(); ++i) {
      const NodeId at = fabric_.link(path[i]).source, planned = fabric_.link(path[i]).target;
      const auto next = routes_.Next(at, target);
      // Behind a switch that may do otherwise the way is not known.
      if (next.size() > 1 && !hashes_.Knows(at, tuple, next.size())) break;
      if (!HasChoice(next)) continue;
      VerifiedTier& tier = TierOf(at);
      if (!Wanted(tier)) continue;
      if (clock.Now() >= deadline) return absl::OkStatus();
      // The switch is at position i, what it chooses one behind.
      WEFT_ASSIGN_OR_RETURN(const std::string name, ask(tuple, static_cast<int>(i) + 1));
      ++tier.asked;
      const auto found = known_.routers.find(name);
      if (found == known_.routers.end()) {
        ++tier.silent;
        continue;
      }
      if (found->second == fabric_.node(planned).name) {
        ++tier.right;
        // By chance as often as links lead there: several may, which the name does not tell apart.
        const auto there = std::count_if(next.begin(), next.end(), [&](LinkId link) {
          return fabric_.link(link).target == planned;
        });
        tier.missed *= static_cast<double>(there) / static_cast<double>(next.size());
        continue;
      }
      example = absl::StrCat("UDP port ", port, " to ", fabric_.node(target.host).name, " (",
                             tuple.target.ToString(), "): ", fabric_.node(at).name, " sends it to ",
                             found->second, ", not ", fabric_.node(planned).name);
      break;  // the rest of the way is another's
    }
    return absl::OkStatus();
  }

  void AppendTo(std::vector<VerifiedTier>& out) const {
    for (const auto& [_, tier] : tiers_) out.push_back(tier);
  }

 private:
  // Several links to one switch are no choice that a name could tell.
  bool HasChoice(absl::Span<const LinkId> next) const {
    return std::any_of(next.begin(), next.end(), [&](LinkId link) {
      return fabric_.link(link).target != fabric_.link(next[0]).target;
    });
  }
  bool Wanted(const VerifiedTier& tier) const {
    return tier.asked < options_.flows && (tier.silent < tier.asked || tier.silent < kSilentMost);
  }
  VerifiedTier& TierOf(NodeId at) {
    const int number = fabric_.node(at).tier;
    auto [found, is_new] = tiers_.try_emplace(number);
    if (is_new) {
      found->second.nic = source_.nic;
      found->second.tier = number;
      found->second.at = fabric_.node(at).name;
    }
    return found->second;
  }

  const Routes& routes_;
  const Fabric& fabric_;
  const FabricHashes& hashes_;
  const HashFile& known_;
  const Endpoint source_;
  const std::vector<Endpoint> targets_;
  const VerifyOptions& options_;
  std::map<int, VerifiedTier> tiers_;
  int tries_ = 0;
};

absl::StatusOr<std::vector<NodeId>> TargetHosts(const Fabric& fabric,
                                                const std::vector<std::string>& names) {
  std::vector<NodeId> out;
  for (const std::string& name : names) {
    WEFT_ASSIGN_OR_RETURN(NodeId host, fabric.Find(name));
    out.push_back(host);
  }
  if (names.empty()) out.assign(fabric.hosts().begin(), fabric.hosts().end());
  return out;
}

}  // namespace

std::string VerifiedTier::ToString() const {
  std::string text = absl::StrCat("NIC ", nic, ", tier ", tier, " (", at, "): ", right, " of ",
                                  asked, " as planned");
  if (silent > 0) absl::StrAppend(&text, ", ", silent, " silent");
  return text;
}

int Verified::Sum(int VerifiedTier::*count) const {
  int sum = 0;
  for (const VerifiedTier& tier : tiers) sum += tier.*count;
  return sum;
}

std::vector<VerifiedTier> Verified::Unverified() const {
  std::vector<VerifiedTier> out;
  for (const VerifiedTier& tier : tiers) {
    if (tier.missed > missed_max) out.push_back(tier);
  }
  return out;
}

std::string Verified::ToString() const {
  if (tiers.empty()) return "no switch has a choice on the ways of this host: nothing to verify";
  std::string text = absl::StrCat(asked(), " flows asked for: ", right(), " as planned");
  if (silent() > 0) absl::StrAppend(&text, ", ", silent(), " without an answer");
  if (HasMoved()) {
    absl::StrAppend(&text, ", ", asked() - right() - silent(), " on other paths, as ", example);
  }
  const std::vector<VerifiedTier> open = Unverified();
  for (size_t i = 0; i < open.size() && i < kTiersShown; ++i) {
    absl::StrAppend(&text, i == 0 ? "; not verified: " : "; ", open[i].ToString());
  }
  if (open.size() > kTiersShown)
    absl::StrAppend(&text, "; and ", open.size() - kTiersShown, " more");
  return text;
}

absl::StatusOr<Verified> VerifyPaths(const Fabric& fabric, const HashFile& known,
                                     absl::string_view origin, const VerifyOptions& options,
                                     const AskName& ask, const Clock& clock) {
  WEFT_ASSIGN_OR_RETURN(NodeId own, fabric.Find(options.host));
  WEFT_ASSIGN_OR_RETURN(FabricHashes hashes, MakeHashes(fabric, known, origin));
  WEFT_ASSIGN_OR_RETURN(std::vector<NodeId> hosts, TargetHosts(fabric, options.targets));
  WEFT_RETURN_IF_ERROR(Routes::Feasible(fabric));
  const Routes routes(fabric);
  const absl::Time deadline = clock.Now() + options.limit;
  Random random(static_cast<uint64_t>(absl::ToUnixNanos(clock.Now())));
  std::vector<NicVerifier> nics;
  for (int nic = 0; nic < fabric.nics(own); ++nic) {
    const Endpoint source{own, nic};
    std::vector<Endpoint> targets;
    for (NodeId host : hosts) {
      // A rail's flows end at the same NIC of the other host.
      const Endpoint target{host, std::min(nic, fabric.nics(host) - 1)};
      if (host != own && routes.Hops(source, target) >= 4) targets.push_back(target);
    }
    if (targets.empty()) continue;  // all are under one switch
    nics.emplace_back(routes, hashes, known, source, std::move(targets), options);
  }
  const bool any_choice = std::any_of(nics.begin(), nics.end(),
                                      [](const NicVerifier& nic) { return nic.has_choice(); });
  if (any_choice && known.routers.empty()) {
    return absl::UnavailableError(
        absl::StrCat(origin,
                     " has no line \"router\", by which answers of switches could be told apart: "
                     "paths cannot be verified; weft-topo discover writes them"));
  }
  Verified out;
  out.missed_max = options.missed_max;
  // In turns, so that a limit cuts all of them alike.
  bool any = true;
  while (any && clock.Now() < deadline) {
    any = false;
    for (NicVerifier& nic : nics) {
      if (nic.done() || clock.Now() >= deadline) continue;
      any = true;
      WEFT_RETURN_IF_ERROR(nic.AskOne(random, ask, clock, deadline, out.example));
    }
  }
  for (const NicVerifier& nic : nics) nic.AppendTo(out.tiers);
  return out;
}

absl::StatusOr<Verified> VerifyPlan(const std::string& folder, const VerifyOptions& options) {
  const std::filesystem::path path(folder);
  const std::string fabric_path = (path / "fabric.toml").string();
  const std::string hashes_path = (path / "hashes.txt").string();
  WEFT_ASSIGN_OR_RETURN(auto plan, ConnectionPlan::Load(folder));
  WEFT_ASSIGN_OR_RETURN(std::string fabric_text, ReadFile(fabric_path));
  WEFT_ASSIGN_OR_RETURN(std::string hashes_text, ReadFile(hashes_path));
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, ReadFabric(fabric_text, fabric_path));
  WEFT_ASSIGN_OR_RETURN(HashFile known, ParseHashFile(hashes_text, hashes_path));
  VerifyOptions own = options;
  if (own.targets.empty()) {
    for (const ConnectionPlanHost& host : plan->text().hosts) own.targets.push_back(host.name);
  }
  TraceStatistics statistics;
  const AskName ask = [&](const FiveTuple& flow, int position) {
    TraceOptions trace;
    trace.source = flow.source;
    trace.target = flow.target;
    trace.target_port = flow.target_port;
    trace.timeout = options.timeout;
    trace.rounds = kRounds;
    return NameAt(trace, flow.source_port, position, statistics);
  };
  return VerifyPaths(fabric, known, hashes_path, own, ask, SystemClock());
}

}  // namespace weft::topology
