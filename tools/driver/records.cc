#include "tools/driver/records.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/status.h"

namespace weft::driver {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kNameMost = 200;
constexpr int kNodesMost = 65536;
constexpr int kRanksPerNodeMost = 4096;
// For a driver's record that this program does not understand.
constexpr char kRemedy[] =
    "use weft-driver and weft-executor of the Weft that wrote it, or begin the job anew under "
    "another --state-dir or --job name";

// Reads members of one object. The first that is missing, or of another type, is the error.
class Reader {
 public:
  Reader(const Json& object, const char* what) : object_(object), what_(what) {
    if (!object.is_object()) Fail("is no object");
  }

  template <typename Value>
  void Take(const char* name, Value& value) {
    const Json* member = Find(name);
    if (member == nullptr) return;
    if constexpr (std::is_same_v<Value, bool>) {
      if (!member->is_boolean()) return Fail(absl::StrCat("has a '", name, "' that is no boolean"));
      value = member->get<bool>();
    } else if constexpr (std::is_integral_v<Value>) {
      // nlohmann's numbers above int64_t's are unsigned ones.
      const bool is_number =
          member->is_number_integer() &&
          (!member->is_number_unsigned() || member->get<uint64_t>() <= uint64_t{INT64_MAX});
      const int64_t number = is_number ? member->get<int64_t>() : 0;
      if (!is_number || number != static_cast<Value>(number)) {
        return Fail(absl::StrCat("has a '", name, "' that is no number of its range"));
      }
      value = static_cast<Value>(number);
    } else if constexpr (std::is_same_v<Value, std::string>) {
      if (!member->is_string()) return Fail(absl::StrCat("has a '", name, "' that is no text"));
      value = member->get<std::string>();
    } else {
      if (!member->is_array()) return Fail(absl::StrCat("has a '", name, "' that is no list"));
      for (const Json& line : *member) {
        if (!line.is_string()) return Fail(absl::StrCat("has a '", name, "' that lists no texts"));
        value.push_back(line.get<std::string>());
      }
    }
  }
  void TakeTime(const char* name, absl::Time& time) {
    int64_t micros = 0;
    Take(name, micros);
    time = absl::FromUnixMicros(micros);
  }
  void TakeDuration(const char* name, absl::Duration& duration) {
    int64_t micros = 0;
    Take(name, micros);
    duration = absl::Microseconds(micros);
  }
  // An array or object, for the caller; an empty one where there is none.
  const Json& Part(const char* name) {
    static const Json none = Json::array();
    const Json* member = Find(name);
    if (member == nullptr) return none;
    if (member->is_array() || member->is_object()) return *member;
    Fail(absl::StrCat("has a '", name, "' that is no list or object"));
    return none;
  }
  // A list of objects, each a value that take(its reader, value) fills. An error of one is this
  // object's.
  template <typename Value, typename TakeOne>
  void TakeList(const char* name, const char* what, std::vector<Value>& values, TakeOne take) {
    for (const Json& object : Part(name)) {
      Value value;
      Reader members(object, what);
      take(members, value);
      if (!members.status().ok()) {
        status_.Update(members.status());
        return;
      }
      values.push_back(std::move(value));
    }
  }
  void Expect(bool holds, absl::string_view problem) {
    if (!holds) Fail(problem);
  }
  const absl::Status& status() const { return status_; }

 private:
  const Json* Find(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto found = object_.find(name);
    if (found != object_.end()) return &*found;
    Fail(absl::StrCat("has no '", name, "'"));
    return nullptr;
  }
  void Fail(absl::string_view problem) {
    if (status_.ok()) status_ = absl::DataLossError(absl::StrCat(what_, " ", problem));
  }

  const Json& object_;
  const char* what_;
  absl::Status status_;
};

absl::StatusOr<Json> ParseJson(absl::string_view text, const char* what) {
  Json json = Json::parse(text.begin(), text.end(), nullptr, false);
  if (json.is_discarded()) {
    return absl::DataLossError(absl::StrCat(what, " is no JSON: '", text.substr(0, 80), "'"));
  }
  return json;
}

// Texts of programs may be no UTF-8.
std::string Dump(const Json& json) { return JsonText(json); }

Json ToJson(const recovery::JobState& job) {
  Json hosts = Json::object();
  for (const auto& [name, host] : job.hosts) {
    hosts[name] = {{"incarnation", host.incarnation},
                   {"address", host.address},
                   {"rack", host.rack},
                   {"node", host.node},
                   {"evicted", host.evicted},
                   {"reason", host.reason},
                   {"test", host.test},
                   {"test_helpers", host.test_helpers},
                   {"cleared", host.cleared},
                   {"own_signals", host.own_signals},
                   {"blamed", absl::ToUnixMicros(host.blamed)}};
  }
  Json nodes = Json::array();
  for (const recovery::NodeState& node : job.nodes) {
    nodes.push_back({{"host", node.host},
                     {"vacant_since", absl::ToUnixMicros(node.vacant_since)},
                     {"rack", node.rack}});
  }
  Json ranks = Json::array();
  for (const recovery::RankState& rank : job.ranks) {
    ranks.push_back({{"generation", rank.generation},
                     {"runs", rank.runs},
                     {"done", rank.done},
                     {"last_end", rank.last_end},
                     {"last_step", rank.last_step},
                     {"started", absl::ToUnixMicros(rank.started)},
                     {"diagnosed", rank.diagnosed},
                     {"soon_ends", rank.soon_ends},
                     {"due", absl::ToUnixMicros(rank.due)}});
  }
  Json notices = Json::array();
  for (const recovery::Notice& notice : job.notices) {
    notices.push_back({{"number", notice.number}, {"host", notice.host}, {"why", notice.why}});
  }
  Json json = {{"decisions", job.decisions},
               {"started", job.started},
               {"restarts", job.restarts},
               {"tests", job.tests},
               {"replays", job.replays},
               {"hosts", hosts},
               {"nodes", nodes},
               {"ranks", ranks},
               {"notices_made", job.notices_made},
               {"notices", notices}};
  if (job.replay.has_value()) {
    const recovery::Replay& replay = *job.replay;
    Json groups = Json::array();
    for (const recovery::ReplayGroup& group : replay.groups) {
      groups.push_back(
          {{"phase", group.phase}, {"hosts", group.hosts}, {"results", group.results}});
    }
    json["replay"] = {{"why", replay.why},
                      {"phase", replay.phase},
                      {"task", replay.task},
                      {"groups", groups},
                      {"stop_status", replay.stop_status}};
  }
  if (job.outcome.has_value()) {
    json["outcome"] = {{"exit_status", job.outcome->exit_status},
                       {"reason", job.outcome->reason},
                       {"time", absl::ToUnixMicros(job.outcome->time)}};
  }
  return json;
}

absl::StatusOr<recovery::Replay> ParseReplay(const Json& json) {
  recovery::Replay replay;
  Reader reader(json, "a replay");
  reader.Take("why", replay.why);
  reader.Take("phase", replay.phase);
  reader.Take("task", replay.task);
  reader.Take("stop_status", replay.stop_status);
  reader.Expect(replay.phase >= 0 && replay.phase < recovery::kReplayPhases, "has no such phase");
  reader.TakeList("groups", "a group of a replay", replay.groups,
                  [](Reader& members, recovery::ReplayGroup& group) {
                    members.Take("phase", group.phase);
                    members.Take("hosts", group.hosts);
                    for (const auto& [host, result] : members.Part("results").items()) {
                      members.Expect(result.is_string(), "has a result that is no text");
                      if (result.is_string()) group.results[host] = result.get<std::string>();
                    }
                  });
  WEFT_RETURN_IF_ERROR(reader.status());
  return replay;
}

absl::Status Parse(const Json& json, const recovery::Policy& policy, recovery::JobState& job) {
  Reader reader(json, "the job's state");
  reader.Take("decisions", job.decisions);
  reader.Take("started", job.started);
  reader.Take("restarts", job.restarts);
  reader.Take("tests", job.tests);
  reader.Take("replays", job.replays);
  for (const auto& [name, object] : reader.Part("hosts").items()) {
    recovery::HostState host;
    Reader members(object, "a host's state");
    members.Take("incarnation", host.incarnation);
    members.Take("address", host.address);
    members.Take("rack", host.rack);
    members.Take("node", host.node);
    members.Take("evicted", host.evicted);
    members.Take("reason", host.reason);
    members.Take("test", host.test);
    members.Take("test_helpers", host.test_helpers);
    members.Take("cleared", host.cleared);
    members.Take("own_signals", host.own_signals);
    members.TakeTime("blamed", host.blamed);
    members.Expect(host.node < policy.nodes, "has a node that the job does not have");
    WEFT_RETURN_IF_ERROR(members.status());
    job.hosts.emplace(name, std::move(host));
  }
  reader.TakeList("nodes", "a node's state", job.nodes,
                  [&](Reader& members, recovery::NodeState& node) {
                    members.Take("host", node.host);
                    members.TakeTime("vacant_since", node.vacant_since);
                    members.Take("rack", node.rack);
                    members.Expect(node.host.empty() || job.hosts.count(node.host) > 0,
                                   "has a host that the job does not have");
                  });
  reader.TakeList("ranks", "a rank's state", job.ranks,
                  [](Reader& members, recovery::RankState& rank) {
                    members.Take("generation", rank.generation);
                    members.Take("runs", rank.runs);
                    members.Take("done", rank.done);
                    members.Take("last_end", rank.last_end);
                    members.Take("last_step", rank.last_step);
                    members.TakeTime("started", rank.started);
                    members.Take("diagnosed", rank.diagnosed);
                    members.Take("soon_ends", rank.soon_ends);
                    members.TakeTime("due", rank.due);
                  });
  reader.Take("notices_made", job.notices_made);
  reader.TakeList("notices", "a notice to the site", job.notices,
                  [](Reader& members, recovery::Notice& notice) {
                    members.Take("number", notice.number);
                    members.Take("host", notice.host);
                    members.Take("why", notice.why);
                  });
  const auto nodes = static_cast<size_t>(policy.nodes);
  reader.Expect(job.nodes.size() == nodes, "has another number of nodes than its policy");
  reader.Expect(job.ranks.size() == nodes * static_cast<size_t>(policy.ranks_per_node),
                "has another number of ranks than its policy");
  if (reader.status().ok() && json.contains("replay")) {
    WEFT_ASSIGN_OR_RETURN(job.replay, ParseReplay(reader.Part("replay")));
  }
  if (reader.status().ok() && json.contains("outcome")) {
    recovery::Outcome outcome;
    Reader members(reader.Part("outcome"), "the job's outcome");
    members.Take("exit_status", outcome.exit_status);
    members.Take("reason", outcome.reason);
    members.TakeTime("time", outcome.time);
    WEFT_RETURN_IF_ERROR(members.status());
    job.outcome = std::move(outcome);
  }
  return reader.status();
}

absl::StatusOr<DriverRecord> ParseMembers(const Json& json) {
  DriverRecord record;
  Reader reader(json, "the driver's record");
  reader.Take("incarnation", record.incarnation);
  reader.Take("writer", record.writer);
  reader.TakeDuration("lease", record.lease);
  reader.Take("closed", record.closed);
  recovery::Policy& policy = record.policy;
  Reader members(reader.Part("policy"), "the driver's policy");
  WEFT_RETURN_IF_ERROR(reader.status());
  members.Take("nodes", policy.nodes);
  members.Take("ranks_per_node", policy.ranks_per_node);
  members.Take("restarts_most", policy.restarts_most);
  members.Take("self_tests", policy.self_tests);
  members.Take("replay_hosts", policy.replay_hosts);
  members.TakeDuration("backoff_first", policy.backoff_first);
  members.TakeDuration("backoff_most", policy.backoff_most);
  members.TakeDuration("vacancy_most", policy.vacancy_most);
  members.Expect(policy.nodes >= 1 && policy.nodes <= kNodesMost, "has no number of nodes");
  members.Expect(policy.ranks_per_node >= 1 && policy.ranks_per_node <= kRanksPerNodeMost,
                 "has no number of ranks a node");
  WEFT_RETURN_IF_ERROR(members.status());
  const Json& job = reader.Part("job");
  const Json& history = reader.Part("history");
  WEFT_RETURN_IF_ERROR(reader.status());
  WEFT_RETURN_IF_ERROR(Parse(job, policy, record.job));
  for (const Json& object : history) {
    HistoryLine line;
    Reader of_line(object, "a line of the driver's history");
    of_line.TakeTime("time", line.time);
    of_line.Take("text", line.text);
    WEFT_RETURN_IF_ERROR(of_line.status());
    record.history.push_back(std::move(line));
  }
  return record;
}

}  // namespace

std::string ReportKey(absl::string_view host) { return absl::StrCat("driver/host/", host); }

absl::Status CheckHostName(absl::string_view name) {
  const bool is_right = !name.empty() && name.size() <= kNameMost &&
                        std::all_of(name.begin(), name.end(), [](char c) {
                          return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' ||
                                 c == '_' || c == '-';
                        });
  if (is_right) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("'", name.substr(0, kNameMost),
                                                 "' is no host's name: 1 to ", kNameMost,
                                                 " letters, digits, '.', '_' and '-' are"));
}

std::string ToJson(const DriverRecord& record) {
  Json history = Json::array();
  for (const HistoryLine& line : record.history) {
    history.push_back({{"time", absl::ToUnixMicros(line.time)}, {"text", line.text}});
  }
  const recovery::Policy& policy = record.policy;
  return Dump({{"version", DriverRecord::kVersion},
               {"incarnation", record.incarnation},
               {"writer", record.writer},
               {"policy",
                {{"nodes", policy.nodes},
                 {"ranks_per_node", policy.ranks_per_node},
                 {"restarts_most", policy.restarts_most},
                 {"self_tests", policy.self_tests},
                 {"replay_hosts", policy.replay_hosts},
                 {"backoff_first", absl::ToInt64Microseconds(policy.backoff_first)},
                 {"backoff_most", absl::ToInt64Microseconds(policy.backoff_most)},
                 {"vacancy_most", absl::ToInt64Microseconds(policy.vacancy_most)}}},
               {"lease", absl::ToInt64Microseconds(record.lease)},
               {"closed", record.closed},
               {"job", ToJson(record.job)},
               {"history", history}});
}

absl::StatusOr<DriverRecord> ParseDriverRecord(absl::string_view text) {
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "the driver's record"));
  int64_t version = 1;
  Reader reader(json, "the driver's record");
  if (json.contains("version")) reader.Take("version", version);
  WEFT_RETURN_IF_ERROR(reader.status());
  if (version != DriverRecord::kVersion) {
    return absl::FailedPreconditionError(absl::StrCat("the driver's record has version ", version,
                                                      ", this program reads version ",
                                                      DriverRecord::kVersion, "; ", kRemedy));
  }
  absl::StatusOr<DriverRecord> record = ParseMembers(json);
  if (record.ok()) return record;
  return absl::Status(record.status().code(),
                      absl::StrCat(record.status().message(), " (version ", version,
                                   " of the driver's record); ", kRemedy));
}

std::string ToJson(const HostReport& report) {
  Json ranks = Json::array();
  for (const RankReport& rank : report.ranks) {
    ranks.push_back({{"rank", rank.rank},
                     {"generation", rank.generation},
                     {"pid", rank.pid},
                     {"alive", rank.alive},
                     {"end", rank.end},
                     {"step", rank.step},
                     {"errors", rank.errors}});
  }
  return Dump({{"incarnation", report.incarnation},
               {"writer", report.writer},
               {"beat", report.beat},
               {"address", report.address},
               {"rack", report.rack},
               {"lease", absl::ToInt64Microseconds(report.lease)},
               {"agent", report.agent},
               {"agent_token", report.agent_token},
               {"pid", report.pid},
               {"leaves", report.leaves},
               {"over", report.over},
               {"spares", report.spares},
               {"bytes", report.bytes},
               {"ranks", ranks},
               {"test", report.test},
               {"passed", report.passed},
               {"untested", report.untested},
               {"test_text", report.test_text},
               {"replay", report.replay},
               {"digests", report.digests},
               {"replay_text", report.replay_text},
               {"findings", report.findings},
               {"recoveries", report.recoveries}});
}

absl::StatusOr<HostReport> ParseHostReport(absl::string_view text) {
  WEFT_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "a host's report"));
  HostReport report;
  Reader reader(json, "a host's report");
  reader.Take("incarnation", report.incarnation);
  reader.Take("writer", report.writer);
  reader.Take("beat", report.beat);
  reader.Take("address", report.address);
  reader.Take("rack", report.rack);
  reader.TakeDuration("lease", report.lease);
  reader.Take("agent", report.agent);
  reader.Take("agent_token", report.agent_token);
  reader.Take("pid", report.pid);
  reader.Take("leaves", report.leaves);
  reader.Take("over", report.over);
  reader.Take("spares", report.spares);
  reader.Take("bytes", report.bytes);
  reader.Take("test", report.test);
  reader.Take("passed", report.passed);
  reader.Take("untested", report.untested);
  reader.Take("test_text", report.test_text);
  reader.Take("replay", report.replay);
  reader.Take("digests", report.digests);
  reader.Take("replay_text", report.replay_text);
  reader.Take("findings", report.findings);
  reader.Take("recoveries", report.recoveries);
  reader.TakeList("ranks", "a rank's report", report.ranks, [](Reader& members, RankReport& rank) {
    members.Take("rank", rank.rank);
    members.Take("generation", rank.generation);
    members.Take("pid", rank.pid);
    members.Take("alive", rank.alive);
    members.Take("end", rank.end);
    members.Take("step", rank.step);
    members.Take("errors", rank.errors);
  });
  WEFT_RETURN_IF_ERROR(reader.status());
  return report;
}

}  // namespace weft::driver
