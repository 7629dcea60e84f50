#include "tools/driver/driver.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/log.h"
#include "base/status.h"

namespace weft::driver {
namespace {

// For the value of a key that is there.
constexpr absl::Duration kReadPatience = absl::Seconds(10);

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

}  // namespace

absl::StatusOr<std::unique_ptr<Driver>> Driver::Open(collectives::Store* store,
                                                     const DriverOptions& options, absl::Time now) {
  OwnRecord own(store, kStateKey);
  DriverRecord record;
  WEFT_RETURN_IF_ERROR(own.Take([&](absl::string_view before) -> absl::StatusOr<std::string> {
    record = {.policy = options.policy, .lease = options.lease};
    if (before.empty()) {
      record.job = NewJob(options.policy, now);
    } else {
      WEFT_ASSIGN_OR_RETURN(record, ParseDriverRecord(before));
      const Policy& policy = record.policy;
      if (policy.nodes != options.policy.nodes ||
          policy.ranks_per_node != options.policy.ranks_per_node) {
        return absl::FailedPreconditionError(
            absl::StrCat("the store has a job of ", policy.nodes, " nodes with ",
                         policy.ranks_per_node, " ranks each, and this driver was started for ",
                         options.policy.nodes, " with ", options.policy.ranks_per_node));
      }
    }
    ++record.incarnation;
    record.writer = own.token();
    return ToJson(record);
  }));
  return std::unique_ptr<Driver>(new Driver(store, std::move(own), std::move(record)));
}

absl::Status Driver::Hear(absl::Time now) {
  WEFT_ASSIGN_OR_RETURN(const std::string names, Read(*store_, kHostsKey));
  std::vector<std::string> hosts = absl::StrSplit(names, '\n', absl::SkipEmpty());
  std::sort(hosts.begin(), hosts.end());
  hosts.erase(std::unique(hosts.begin(), hosts.end()), hosts.end());
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
  return now - heard.at > record_.lease + record_.lease / 4;
}

std::vector<Event> Driver::EventsOf(const std::string& host, const Heard& heard,
                                    absl::Time now) const {
  const HostReport& report = heard.report;
  const auto known = job().hosts.find(host);
  const bool is_known = known != job().hosts.end();
  if (IsLost(heard, now)) {
    if (!is_known) return {};
    return {{.kind = EventKind::kHostLost, .now = now, .host = host}};
  }
  std::vector<Event> events;
  if (!is_known || known->second.incarnation != report.incarnation) {
    // The report of one that died long ago is in the store as well: who joins goes on reporting.
    if (!heard.changed || report.leaves || report.over) return {};
    return {{.kind = EventKind::kHostJoined,
             .now = now,
             .host = host,
             .incarnation = report.incarnation,
             .address = report.address,
             .rack = report.rack}};
  }
  if (known->second.evicted) return {};
  if (report.leaves) return {{.kind = EventKind::kHostLeaves, .now = now, .host = host}};
  if (report.test != 0 && report.test == known->second.test) {
    events.push_back({.kind = EventKind::kSelfTest,
                      .now = now,
                      .host = host,
                      .test = report.test,
                      .passed = report.passed,
                      .text = report.test_text});
  }
  if (job().replay.has_value() && report.replay == job().replay->task) {
    for (const std::string& digest : report.digests) {
      events.push_back({.kind = EventKind::kReplayed,
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
    events.push_back({.kind = EventKind::kRankEnded,
                      .now = now,
                      .host = host,
                      .rank = rank.rank,
                      .generation = rank.generation,
                      .end = collectives::ParseProcessEnd(rank.end),
                      .step = rank.step});
  }
  return events;
}

absl::StatusOr<std::vector<Action>> Driver::Turn(absl::Time now) {
  WEFT_RETURN_IF_ERROR(Hear(now));
  std::vector<Event> events;
  for (const auto& [host, heard] : heard_) {
    for (Event& event : EventsOf(host, heard, now)) events.push_back(std::move(event));
  }
  // A host of which this driver has heard nothing at all since it was started is in heard_ as well:
  // its executor's last report is in the store.
  events.push_back({.kind = EventKind::kTime, .now = now});
  return Commit(events, now);
}

absl::StatusOr<std::vector<Action>> Driver::Evict(const std::string& host, const std::string& why,
                                                  absl::Time now) {
  const auto known = job().hosts.find(host);
  if (known == job().hosts.end()) {
    return absl::NotFoundError(absl::StrCat("the job has no host '", host, "'"));
  }
  return Commit({{.kind = EventKind::kHostEvicted, .now = now, .host = host, .text = why}}, now);
}

absl::StatusOr<std::vector<Action>> Driver::Replay(const std::string& why, absl::Time now) {
  WEFT_ASSIGN_OR_RETURN(std::vector<Action> actions,
                        Commit({{.kind = EventKind::kReplay, .now = now, .text = why}}, now));
  if (!actions.empty()) return actions;
  const int size = record_.policy.replay_hosts;
  return absl::FailedPreconditionError(
      size == 0
          ? std::string("the driver was started without --replay-hosts")
          : absl::StrCat("a replay needs a job that has started, of which no rank is done and "
                         "which replays nothing yet, and ",
                         2 * size, " hosts that are not being tested"));
}

absl::StatusOr<std::vector<Action>> Driver::Diagnosed(int rank, Blame blame,
                                                      const std::string& text, absl::Time now) {
  return Commit({{.kind = EventKind::kDiagnosed,
                  .now = now,
                  .text = absl::StrCat("diagnosis: ", text),
                  .rank = rank,
                  .blame = blame}},
                now);
}

absl::Status Driver::SiteTold(int64_t notice, absl::Time now) {
  return Commit({{.kind = EventKind::kSiteTold, .now = now, .notice = notice}}, now).status();
}

absl::StatusOr<std::vector<Action>> Driver::Stop(int exit_status, const std::string& why,
                                                 absl::Time now) {
  return Commit(
      {{.kind = EventKind::kStopped, .now = now, .exit_status = exit_status, .text = why}}, now);
}

absl::StatusOr<std::vector<Action>> Driver::Commit(const std::vector<Event>& events,
                                                   absl::Time now) {
  absl::StatusOr<std::vector<Action>> done = TryCommit(events, now);
  // On what an earlier call has left of which this driver did not learn.
  return absl::IsFailedPrecondition(done.status()) ? TryCommit(events, now) : done;
}

absl::StatusOr<std::vector<Action>> Driver::TryCommit(const std::vector<Event>& events,
                                                      absl::Time now) {
  DriverRecord next = record_;
  std::vector<Action> actions;
  for (const Event& event : events) {
    for (Action& action : Decide(next.policy, next.job, event)) {
      next.history.push_back({.time = now, .text = ToText(action)});
      actions.push_back(std::move(action));
    }
  }
  if (next.job == record_.job) return actions;
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
  return actions;
}

bool Driver::all_know(absl::Time now) const {
  return std::all_of(heard_.begin(), heard_.end(), [&](const auto& entry) {
    return entry.second.report.over || IsLost(entry.second, now) ||
           job().hosts.count(entry.first) == 0;
  });
}

}  // namespace weft::driver
