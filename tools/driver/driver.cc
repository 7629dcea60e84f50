#include "tools/driver/driver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status.h"
#include "collectives/recovery.h"
#include "tools/driver/state_folder.h"

namespace weft::driver {
namespace {

// For the value of a key that is there.
constexpr absl::Duration kReadPatience = absl::Seconds(10);
// Until the executors of a job have found a driver that was started on another host.
constexpr absl::Duration kMoveMost = absl::Seconds(60);

// Empty: the key is not there.
absl::StatusOr<std::string> Read(collectives::Store& store, const std::string& key) {
  WEFT_ASSIGN_OR_RETURN(const bool is_there, store.Check({key}));
  if (!is_there) return std::string();
  return store.Get(key, kReadPatience);
}

absl::Status Replaced(const DriverRecord& by) {
  return absl::AbortedError(
      absl::StrCat("another driver (incarnation ", by.incarnation, ") has taken this one's place"));
}

// What all hosts and ranks go by from the first to the last.
absl::Status CheckSize(const recovery::Policy& has, const recovery::Policy& wanted) {
  if (has.nodes == wanted.nodes && has.ranks_per_node == wanted.ranks_per_node) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat("the store has a job of ", has.nodes, " nodes with ", has.ranks_per_node,
                   " ranks each, which cannot change while it lasts, and this driver was started "
                   "for --nodes ",
                   wanted.nodes, " --ranks ", wanted.ranks_per_node));
}

// In a new store they count their incarnations from 1; each host keeps its node.
void ForgetExecutors(recovery::JobState& job) {
  for (auto& [_, host] : job.hosts) host.incarnation = 0;
}

std::string TextOf(int value) { return absl::StrCat(value); }
std::string TextOf(bool value) { return value ? "on" : "off"; }
std::string TextOf(absl::Duration value) { return absl::FormatDuration(value); }

// Takes the options that are given, and says which are others than before.
std::vector<std::string> TakeOptions(const DriverOptions& options, DriverRecord& record) {
  std::vector<std::string> changes;
  const auto take = [&](const char* name, auto& has, const auto& wanted) {
    if (options.given.count(name) == 0 || has == wanted) return;
    changes.push_back(absl::StrCat(name, " ", TextOf(wanted), " (was ", TextOf(has), ")"));
    has = wanted;
  };
  recovery::Policy& policy = record.policy;
  take("--recover", policy.restarts_most, options.policy.restarts_most);
  take("--self-tests", policy.self_tests, options.policy.self_tests);
  take("--replay-hosts", policy.replay_hosts, options.policy.replay_hosts);
  take("--backoff", policy.backoff_first, options.policy.backoff_first);
  take("--backoff-most", policy.backoff_most, options.policy.backoff_most);
  take("--vacancy", policy.vacancy_most, options.policy.vacancy_most);
  take("--lease", record.lease, options.lease);
  return changes;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> Driver::Open(collectives::Store* store,
                                                     const DriverOptions& options, absl::Time now,
                                                     std::shared_ptr<const Etcd> etcd) {
  const std::string token = NewWriterToken();
  EtcdKeeper* keeper = nullptr;
  OwnRecord own(store, kStateKey, token);
  std::string copied;
  if (etcd != nullptr) {
    auto made = std::make_unique<EtcdKeeper>(std::move(etcd));
    keeper = made.get();
    own = OwnRecord(std::move(made), token);
    WEFT_ASSIGN_OR_RETURN(copied, Read(*store, kStateKey));
  }
  DriverRecord record;
  std::vector<std::string> changes;
  bool is_new_store = false;
  WEFT_RETURN_IF_ERROR(own.Take([&](absl::string_view before) -> absl::StatusOr<std::string> {
    record = {.policy = options.policy, .lease = options.lease};
    changes.clear();
    is_new_store = keeper != nullptr && copied.empty() && !before.empty();
    if (before.empty()) before = copied;  // of a driver without etcd
    if (!before.empty()) {
      absl::StatusOr<DriverRecord> parsed = ParseDriverRecord(before);
      if (!parsed.ok()) {
        return Annotate(parsed.status(), keeper == nullptr ? absl::StrCat("the store's ", kStateKey)
                                                           : keeper->name());
      }
      DriverRecord earlier = *std::move(parsed);
      if (earlier.closed && !options.anew) {
        return absl::AlreadyExistsError(
            absl::StrCat(keeper == nullptr ? "the store" : keeper->name(), " has a job that ",
                         OverText(earlier.job)));
      }
      if (earlier.closed) {
        record.incarnation = earlier.incarnation;
        is_new_store = false;
      } else {
        WEFT_RETURN_IF_ERROR(CheckSize(earlier.policy, options.policy));
        record = std::move(earlier);
        changes = TakeOptions(options, record);
        recovery::GoOn(record.policy, record.job, now);
      }
    }
    if (record.job.nodes.empty()) record.job = recovery::NewJob(options.policy, now);
    if (is_new_store) ForgetExecutors(record.job);
    for (const std::string& change : changes) {
      record.history.push_back({.time = now, .text = change});
    }
    ++record.incarnation;
    record.writer = own.token();
    return ToJson(record);
  }));
  std::unique_ptr<Driver> driver(new Driver(store, std::move(own)));
  driver->etcd_ = keeper;
  driver->record_ = std::move(record);
  driver->changes_ = std::move(changes);
  if (keeper != nullptr) WEFT_RETURN_IF_ERROR(driver->BeginCopy(token));
  if (is_new_store) {
    for (const auto& [name, host] : driver->job().hosts) {
      if (!host.evicted) driver->heard_[name] = {.at = now + kMoveMost};
    }
  }
  return driver;
}

absl::Status Driver::BeginCopy(const std::string& token) {
  copy_.emplace(store_, kStateKey, token);
  return copy_->Take([&](absl::string_view before) -> absl::StatusOr<std::string> {
    if (!before.empty()) {
      WEFT_ASSIGN_OR_RETURN(const DriverRecord other, ParseDriverRecord(before));
      if (other.incarnation > record_.incarnation) return Replaced(other);
    }
    return ToJson(record_);
  });
}

absl::Status Driver::Announce(const std::string& address) {
  return etcd_ == nullptr ? absl::OkStatus() : etcd_->PutAddress(address);
}

absl::Status Driver::Hear(absl::Time now) {
  WEFT_ASSIGN_OR_RETURN(const std::string names, Read(*store_, kHostsKey));
  std::vector<std::string> hosts = absl::StrSplit(names, '\n', absl::SkipEmpty());
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
  // A driver that was stopped, or kept waiting by its store, did not listen: of the time between
  // two looks, half a lease at most counts as a host's silence.
  const absl::Duration absence = now - looked_ - record_.lease / 2;
  if (absence > absl::ZeroDuration()) {
    for (auto& [_, heard] : heard_) heard.at += absence;
  }
  looked_ = now;
  if (hosts.empty()) return absl::OkStatus();
  std::vector<std::string> keys;
  for (const std::string& host : hosts) keys.push_back(ReportKey(host));
  WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                        store_->MultiGet(keys, kReadPatience));
  for (size_t i = 0; i < hosts.size(); ++i) {
    absl::StatusOr<HostReport> report = ParseHostReport(texts[i]);
    if (!report.ok()) {
      WEFT_LOG_WARN("host ", hosts[i], ": ", report.status().message());
      continue;
    }
    const auto [at, is_new] = heard_.try_emplace(hosts[i]);
    Heard& heard = at->second;
    if (!is_new && heard.report.beat == report->beat &&
        heard.report.incarnation == report->incarnation) {
      continue;
    }
    heard = {.report = *std::move(report), .at = now, .changed = !is_new};
  }
  return absl::OkStatus();
}

bool Driver::IsLost(const Heard& heard, absl::Time now) const {
  // A lease that has become shorter holds for a host once its executor knows.
  const absl::Duration lease = std::max(record_.lease, heard.report.lease);
  return now - heard.at > lease + lease / 4;
}

std::vector<recovery::Event> Driver::EventsOf(const std::string& host, const Heard& heard,
                                              absl::Time now) const {
  const HostReport& report = heard.report;
  const auto known = job().hosts.find(host);
  const bool is_known = known != job().hosts.end();
  if (IsLost(heard, now)) {
    if (!is_known) return {};
    return {{.kind = recovery::EventKind::kHostLost, .now = now, .host = host}};
  }
  std::vector<recovery::Event> events;
  if (!is_known || known->second.incarnation != report.incarnation) {
    // The report of one that died long ago is in the store as well: who joins goes on reporting.
    if (!heard.changed || report.leaves || report.over) return {};
    return {{.kind = recovery::EventKind::kHostJoined,
             .now = now,
             .host = host,
             .incarnation = report.incarnation,
             .address = report.address,
             .rack = report.rack}};
  }
  if (known->second.evicted) return {};
  if (report.leaves) return {{.kind = recovery::EventKind::kHostLeaves, .now = now, .host = host}};
  if (report.test != 0 && report.test == known->second.test) {
    events.push_back({.kind = recovery::EventKind::kSelfTest,
                      .now = now,
                      .host = host,
                      .test = report.test,
                      .passed = report.passed,
                      .untested = report.untested,
                      .text = report.test_text});
  }
  if (job().replay.has_value() && report.replay == job().replay->task) {
    for (const std::string& digest : report.digests) {
      events.push_back({.kind = recovery::EventKind::kReplayed,
                        .now = now,
                        .host = host,
                        .test = report.replay,
                        .passed = !digest.empty(),
                        .text = digest});
    }
  }
  for (const RankReport& rank : report.ranks) {
    if (rank.alive || rank.rank < 0 || rank.rank >= static_cast<int>(job().ranks.size())) continue;
    if (rank.rank / record_.policy.ranks_per_node != known->second.node) continue;
    events.push_back({.kind = recovery::EventKind::kRankEnded,
                      .now = now,
                      .host = host,
                      .rank = rank.rank,
                      .generation = rank.generation,
                      .end = collectives::ParseProcessEnd(rank.end),
                      .step = rank.step});
  }
  return events;
}

absl::StatusOr<std::vector<recovery::Action>> Driver::Turn(absl::Time now) {
  WEFT_RETURN_IF_ERROR(Hear(now));
  std::vector<recovery::Event> events;
  for (const auto& [host, heard] : heard_) {
    for (recovery::Event& event : EventsOf(host, heard, now)) events.push_back(std::move(event));
  }
  // A host of which this driver has heard nothing at all since it was started is in heard_ as well:
  // its executor's last report is in the store.
  events.push_back({.kind = recovery::EventKind::kTime, .now = now});
  return Commit(events, now);
}

absl::StatusOr<std::vector<recovery::Action>> Driver::Evict(const std::string& host,
                                                            const std::string& why,
                                                            absl::Time now) {
  const auto known = job().hosts.find(host);
  if (known == job().hosts.end()) {
    return absl::NotFoundError(absl::StrCat("the job has no host '", host, "'"));
  }
  return Commit(
      {{.kind = recovery::EventKind::kHostEvicted, .now = now, .host = host, .text = why}}, now);
}

absl::StatusOr<std::vector<recovery::Action>> Driver::Replay(const std::string& why,
                                                             absl::Time now) {
  WEFT_ASSIGN_OR_RETURN(
      std::vector<recovery::Action> actions,
      Commit({{.kind = recovery::EventKind::kReplay, .now = now, .text = why}}, now));
  if (!actions.empty()) return actions;
  const int size = record_.policy.replay_hosts;
  return absl::FailedPreconditionError(
      size == 0
          ? std::string("the driver was started without --replay-hosts")
          : absl::StrCat("a replay needs a job that has started, of which no rank is done and "
                         "which replays nothing yet, and ",
                         2 * size, " hosts that are not being tested"));
}

absl::StatusOr<std::vector<recovery::Action>> Driver::Diagnosed(const std::vector<int>& ranks,
                                                                recovery::Blame blame,
                                                                const std::string& text,
                                                                absl::Time now) {
  std::vector<recovery::Event> events;
  std::set<std::string> hosts;
  for (const int rank : ranks) {
    if (rank < 0 || rank >= static_cast<int>(job().ranks.size())) continue;
    // One rank speaks for all of its host: another host may have their node after the first.
    const auto node = static_cast<size_t>(rank / record_.policy.ranks_per_node);
    if (blame == recovery::Blame::kHost && !hosts.insert(job().nodes[node].host).second) continue;
    events.push_back({.kind = recovery::EventKind::kDiagnosed,
                      .now = now,
                      .text = absl::StrCat("diagnosis: ", text),
                      .rank = rank,
                      .blame = blame});
  }
  return Commit(events, now);
}

absl::Status Driver::SiteTold(int64_t notice, absl::Time now) {
  return Commit({{.kind = recovery::EventKind::kSiteTold, .now = now, .notice = notice}}, now)
      .status();
}

absl::StatusOr<std::vector<recovery::Action>> Driver::Stop(int exit_status, const std::string& why,
                                                           absl::Time now) {
  return Commit({{.kind = recovery::EventKind::kStopped,
                  .now = now,
                  .exit_status = exit_status,
                  .text = why}},
                now);
}

absl::StatusOr<std::vector<recovery::Action>> Driver::Commit(std::vector<recovery::Event> events,
                                                             absl::Time now) {
  const bool any_ended =
      std::any_of(job().ranks.begin(), job().ranks.end(),
                  [](const recovery::RankState& rank) { return rank.done; }) ||
      std::any_of(events.begin(), events.end(), [](const recovery::Event& event) {
        return event.kind == recovery::EventKind::kRankEnded;
      });
  if (any_ended && !job().outcome.has_value()) {
    WEFT_ASSIGN_OR_RETURN(const bool over, collectives::Recovery::IsOver(*store_));
    for (recovery::Event& event : events) event.over = over;
  }
  absl::StatusOr<std::vector<recovery::Action>> done = TryCommit(events, now);
  // On what an earlier call has left of which this driver did not learn.
  return absl::IsFailedPrecondition(done.status()) ? TryCommit(events, now) : done;
}

absl::StatusOr<std::vector<recovery::Action>> Driver::TryCommit(
    const std::vector<recovery::Event>& events, absl::Time now) {
  DriverRecord next = record_;
  std::vector<recovery::Action> actions;
  for (const recovery::Event& event : events) {
    for (recovery::Action& action : recovery::Decide(next.policy, next.job, event)) {
      next.history.push_back({.time = now, .text = ToText(action)});
      actions.push_back(std::move(action));
    }
  }
  if (next.job == record_.job) return actions;
  WEFT_RETURN_IF_ERROR(Write(std::move(next)));
  return actions;
}

absl::Status Driver::Write(DriverRecord next) {
  if (next.history.size() > DriverRecord::kHistoryMost) {
    next.history.erase(next.history.begin(),
                       next.history.end() - static_cast<ptrdiff_t>(DriverRecord::kHistoryMost));
  }
  std::string other;
  const absl::Status written = own_.Replace(ToJson(next), &other);
  if (absl::IsAborted(written)) {
    WEFT_ASSIGN_OR_RETURN(const DriverRecord by, ParseDriverRecord(other));
    return Replaced(by);
  }
  if (absl::IsFailedPrecondition(written)) {
    WEFT_ASSIGN_OR_RETURN(record_, ParseDriverRecord(other));
  }
  WEFT_RETURN_IF_ERROR(written);
  record_ = std::move(next);
  if (!copy_.has_value()) return absl::OkStatus();
  absl::Status copied = copy_->ReplaceAny(ToJson(record_), &other);
  if (!absl::IsAborted(copied)) return copied;
  WEFT_ASSIGN_OR_RETURN(const DriverRecord by, ParseDriverRecord(other));
  return Replaced(by);
}

absl::Status Driver::Close() {
  const auto close = [this] {
    DriverRecord next = record_;
    next.closed = true;
    return Write(std::move(next));
  };
  const absl::Status closed = close();
  return absl::IsFailedPrecondition(closed) ? close() : closed;
}

bool Driver::all_know(absl::Time now) const {
  return std::all_of(heard_.begin(), heard_.end(), [&](const auto& entry) {
    return entry.second.report.over || IsLost(entry.second, now) ||
           job().hosts.count(entry.first) == 0;
  });
}

}  // namespace weft::driver
