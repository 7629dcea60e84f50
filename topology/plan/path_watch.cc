#include "topology/plan/path_watch.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <system_error>
#include <utility>

#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/log.h"
#include "topology/ecmp/udp_prober.h"

namespace weft::topology {
namespace {

constexpr int kBehindFirst = 2;          // time to live
constexpr size_t kProbes = 4;            // of a look where nothing has changed
constexpr size_t kProbesToExplain = 12;  // of one target
constexpr size_t kAnswersToExplain = 6;  // that must have come; all of them are explained
constexpr absl::Duration kPerRank = absl::Milliseconds(25);
constexpr uint16_t kFirstPort = 0xC000, kPorts = 0x3000;

}  // namespace

AskBehindFirst UdpAskBehindFirst() {
  return [](const IpAddress& source, const IpAddress& target, absl::Span<const uint16_t> ports) {
    UdpProber prober({source, target, kRoceTargetPort, kPathWatchTimeout});
    std::vector<std::string> names;
    for (const HopAnswer& answer : prober.AskAll(ports, kBehindFirst)) {
      names.push_back(RouterName(answer, source.v6));
    }
    return names;
  };
}

PathWatch::PathWatch(ConnectionPlan& plan, const IpAddress& own, AskBehindFirst ask, uint64_t seed)
    : plan_(plan), own_(own), ask_(std::move(ask)), random_(seed) {
  const ConnectionPlanText& text = plan.text();
  std::map<std::string, IpAddress> examples;   // by first switch
  std::map<std::string, std::string> leaf_of;  // by host
  for (const ConnectionPlanHost& host : text.hosts) {
    for (size_t nic = 0; nic < host.addresses.size(); ++nic) {
      if (host.addresses[nic] == own) leaf_ = host.leaves[nic];
      examples.try_emplace(host.leaves[nic], host.addresses[nic]);
      leaf_of.try_emplace(host.name, host.leaves[nic]);
    }
  }
  std::set<int> ranks;
  for (const ConnectionPlanFlow& flow : text.flows) {
    if (leaf_of[flow.source] == leaf_) ranks.insert(flow.rank);
  }
  ranks_ = static_cast<int>(ranks.size());
  std::set<std::string> named;
  for (const auto& [_, name] : text.routers) named.insert(name);
  for (const auto& [leaves, ways] : text.spares) {
    const auto example = examples.find(leaves.second);
    if (leaves.first != leaf_ || example == examples.end()) continue;
    Target target{example->second, 0, {}};
    for (const PathWay& way : ways) {
      if (way.choices.empty() || way.choices[0].at != leaf_ ||
          named.count(way.choices[0].to) == 0) {
        continue;
      }
      // All ways to one switch choose among as many: a file that was changed may say otherwise.
      if (!target.members.empty() && way.choices[0].count != target.count) continue;
      target.count = way.choices[0].count;
      target.members[way.choices[0].index] = way.choices[0].to;
      names_.insert(way.choices[0].to);
    }
    const auto hash = text.hashes.find(leaf_);
    if (target.members.empty() || hash == text.hashes.end() || !hash->second.KnowsAll()) continue;
    targets_.push_back(std::move(target));
  }
}

absl::Duration PathWatch::Interval(absl::Duration least) const {
  return std::max(least, ranks_ * kPerRank);
}

FiveTuple PathWatch::Tuple(const Target& target, uint16_t port) const {
  return {own_, target.address, port, kRoceTargetPort, kProtocolUdp, 0};
}

// The switch that packets go to while those of `gone` are not among the next hops; "": it has no
// name.
std::string PathWatch::Expected(const Target& target, uint16_t port, const Gone& gone) const {
  const SwitchHash& hash = plan_.text().hashes.at(leaf_);
  std::vector<bool> all(target.count, true);
  size_t left = target.count;
  for (const auto& [index, name] : target.members) {
    if (gone.count(name) == 0) continue;
    all[index] = false;
    --left;
  }
  if (left == 0) return "";
  const std::unique_ptr<bool[]> alive(new bool[target.count]);
  std::copy(all.begin(), all.end(), alive.get());
  const auto index = static_cast<uint32_t>(
      hash.SelectAlive(Tuple(target, port), absl::MakeConstSpan(alive.get(), target.count)));
  const auto found = target.members.find(index);
  return found == target.members.end() ? "" : found->second;
}

// Ports of flows whose next switch has a name, of as many different ones as there are.
std::vector<uint16_t> PathWatch::Ports(const Target& target, const Gone& gone, size_t count) {
  std::vector<uint16_t> ports;
  std::set<std::string> met;
  for (size_t i = 0; i < 16 * count && ports.size() < count; ++i) {
    const auto port = static_cast<uint16_t>(kFirstPort + random_.Below(kPorts));
    const std::string name = Expected(target, port, gone);
    if (name.empty() || std::find(ports.begin(), ports.end(), port) != ports.end()) continue;
    if (met.size() < target.members.size() - gone.size() && i < 8 * count &&
        !met.insert(name).second) {
      continue;
    }
    ports.push_back(port);
  }
  return ports;
}

std::vector<std::string> PathWatch::Ask(const Target& target,
                                        absl::Span<const uint16_t> ports) const {
  std::vector<std::string> names = ask_(own_, target.address, ports);
  names.resize(ports.size());
  for (std::string& name : names) {
    const auto router = plan_.text().routers.find(name);
    name = router == plan_.text().routers.end() ? "" : router->second;
  }
  return names;
}

PathWatch::Gone PathWatch::Known() const {
  Gone gone;
  for (const std::string& name : names_) {
    if (plan_.HasLeft(leaf_, name)) gone.insert(name);
  }
  return gone;
}

// What is gone from the next hops towards one target. None: answers do not tell.
std::optional<PathWatch::Gone> PathWatch::Explain(const Target& target) {
  const std::vector<uint16_t> ports = Ports(target, {}, kProbesToExplain);
  const std::vector<std::string> answers = Ask(target, ports);
  const auto heard = std::count_if(answers.begin(), answers.end(),
                                   [](const std::string& name) { return !name.empty(); });
  if (static_cast<size_t>(heard) < kAnswersToExplain) return std::nullopt;
  const auto explains = [&](const Gone& gone) {
    for (size_t i = 0; i < ports.size(); ++i) {
      if (!answers[i].empty() && Expected(target, ports[i], gone) != answers[i]) return false;
    }
    return true;
  };
  // Each once: several next hops may be one switch.
  std::set<Gone> candidates = {Gone()};
  const Gone known = Known();
  for (const auto& [_, name] : target.members) {
    candidates.insert(Gone{name});
    if (known.empty()) continue;
    Gone more = known, fewer = known;
    more.insert(name);
    fewer.erase(name);
    candidates.insert(std::move(more));
    candidates.insert(std::move(fewer));
  }
  std::optional<Gone> found;
  for (const Gone& gone : candidates) {
    if (!explains(gone)) continue;
    if (found.has_value()) return std::nullopt;
    found = gone;
  }
  return found;
}

void PathWatch::Look() {
  if (targets_.empty()) return;
  const size_t first = random_.Below(targets_.size());
  const Target& target = targets_[first];
  const Gone known = Known();
  const std::vector<uint16_t> ports = Ports(target, known, kProbes);
  const std::vector<std::string> answers = Ask(target, ports);
  const auto differs = [&](const Gone& gone) {
    for (size_t i = 0; i < ports.size(); ++i) {
      if (!answers[i].empty() && answers[i] != Expected(target, ports[i], gone)) return true;
    }
    return false;
  };
  if (!differs(known)) return;
  // One that is unreachable behind its neighbour is gone for that target alone: this says nothing
  // of the flows to others.
  const std::optional<Gone> gone = Explain(target);
  if (!gone.has_value() || *gone == known) return;
  if (targets_.size() > 1) {
    const size_t second = (first + 1 + random_.Below(targets_.size() - 1)) % targets_.size();
    if (Explain(targets_[second]) != gone) return;
  }
  for (const std::string& name : names_) {
    if (gone->count(name) == known.count(name)) continue;
    WEFT_LOG_INFO("plan: ", leaf_, " hashes ",
                  gone->count(name) > 0 ? "no more over " : "again over ", name,
                  "; planned connections follow");
    plan_.Leaves(leaf_, name, gone->count(name) > 0);
  }
}

std::shared_ptr<PathWatcher> PathWatcher::Share(std::shared_ptr<ConnectionPlan> plan,
                                                const IpAddress& own, absl::Duration interval) {
  static std::mutex mutex;
  static std::map<std::pair<const ConnectionPlan*, IpAddress>, std::weak_ptr<PathWatcher>> known;
  std::lock_guard lock(mutex);
  std::weak_ptr<PathWatcher>& entry = known[{plan.get(), own}];
  if (std::shared_ptr<PathWatcher> there = entry.lock()) return there;
  std::shared_ptr<PathWatcher> made(new PathWatcher(std::move(plan), own, interval));
  if (!made->thread_.joinable()) return nullptr;
  entry = made;
  return made;
}

PathWatcher::PathWatcher(std::shared_ptr<ConnectionPlan> plan, const IpAddress& own,
                         absl::Duration interval)
    : plan_(std::move(plan)),
      interval_(interval),
      watch_(*plan_, own, UdpAskBehindFirst(),
             static_cast<uint64_t>(absl::ToUnixNanos(SystemClock().Now())) ^
                 static_cast<uint64_t>(getpid())) {
  if (!watch_.CanSee()) return;
  // Signals are the program's.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    thread_ = std::thread([this] { Run(); });
  } catch (const std::system_error& error) {
    WEFT_LOG_WARN("plan: no thread to watch paths with (", error.what(),
                  "): flows do not follow where switches leave a next hop");
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

PathWatcher::~PathWatcher() {
  {
    std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  ends_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void PathWatcher::Run() {
  const auto interval = absl::ToChronoMilliseconds(watch_.Interval(interval_));
  std::unique_lock lock(mutex_);
  while (!ends_.wait_for(lock, interval, [this] { return is_over_; })) {
    lock.unlock();
    watch_.Look();
    lock.lock();
  }
}

}  // namespace weft::topology
