#include "tools/observe/agent.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/log_throttle.h"
#include "base/read_file.h"
#include "base/status.h"
#include "tools/observe/ring_changes.h"

namespace weft::observe {
namespace {

std::string NameOf(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

// Readings that have changed since they were first seen, and devices'; no more than a look may
// cost.
nlohmann::json ReadingsJson(const Readings& readings) {
  constexpr size_t kReadingsMax = 128;
  nlohmann::json out = nlohmann::json::array();
  for (const auto& [key, reading] : readings) {
    if (reading.grew() == 0 && !absl::StartsWith(key.first, "gpu/")) continue;
    out.push_back({key.first, key.second, reading.first, reading.last, reading.changed_ns});
    if (out.size() == kReadingsMax) break;
  }
  return out;
}

}  // namespace

bool IsRingName(absl::string_view name) {
  return absl::EndsWith(name, ".weft") && !absl::StrContains(name, '/') && name[0] != '.';
}

absl::StatusOr<std::unique_ptr<Agent>> Agent::Start(const AgentOptions& options) {
  WEFT_ASSIGN_OR_RETURN(HttpServer server, HttpServer::Listen(options.server));
  return std::unique_ptr<Agent>(new Agent(options, std::move(server)));
}

void Agent::Read() {
  const auto found = JobsIn(options_.folder);
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    job = found.count(job->first) == 0 ? jobs_.erase(job) : std::next(job);
  }
  counters_.unreadable_rings = 0;
  for (const auto& [name, state] : found) {
    JobWatch& watch = jobs_.try_emplace(name, options_.folder, name).first->second;
    watch.Update(/*live=*/true, SystemClock::Nanoseconds());
    counters_.unreadable_rings = std::max(counters_.unreadable_rings, watch.unreadable());
  }
}

std::vector<Metric> Agent::CurrentMetrics() {
  std::vector<JobView> views;
  std::vector<std::vector<Finding>> findings;
  for (const auto& [name, watch] : jobs_) {
    views.push_back(watch.view());
    findings.push_back(Diagnose(watch.view()));
  }
  counters_.requests_turned_away = server_.turned_away();
  return Metrics(views, findings, ReadHostCounters(), counters_);
}

// A sink that is gone costs rows, which are counted, and at most its patience here; no job.
void Agent::Push() {
  const std::vector<Metric> metrics = CurrentMetrics();
  HttpCall call{.method = "POST", .path = "/v1/metrics"};
  call.body = OtlpMetricsJson(metrics, absl::ToUnixNanos(absl::Now()));
  call.patience = absl::Seconds(1);
  const absl::Status pushed = HttpFetch(*options_.otlp, call).status();
  if (pushed.ok()) {
    ++counters_.pushes;
    return;
  }
  ++counters_.push_failures;
  for (const Metric& metric : metrics) counters_.pushes_dropped += metric.samples.size();
  if (counters_.push_failures == 1) {
    WEFT_LOG_WARN("OTLP: ", pushed.message(), "; further failures are counted only");
  }
}

void Agent::Turn() {
  const absl::Time now = SystemClock().Now();
  if (now >= read_at_) {
    Read();
    read_at_ = now + options_.period;
  }
  if (options_.otlp.has_value() && now >= push_at_) {
    Push();
    push_at_ = now + options_.push_period;
  }
  server_.Turn([this](const HttpRequest& request) { return Answer(request); },
               std::min(options_.period, absl::Milliseconds(100)));
}

std::string Agent::RingsJson() const {
  nlohmann::json rings = nlohmann::json::array();
  for (const auto& [name, watch] : jobs_) {
    for (const auto& [number, rank] : watch.view().ranks) {
      const ProcessState& state = rank.state;
      rings.push_back({{"name", NameOf(rank.path)},
                       {"job", name},
                       {"rank", number},
                       {"exists", state.exists},
                       {"state", std::string(1, state.state)},
                       {"cpu_seconds", state.cpu_seconds},
                       {"run_queue_seconds", state.run_queue_seconds},
                       {"resident_bytes", state.resident_bytes},
                       {"minor_faults", state.minor_faults},
                       {"major_faults", state.major_faults},
                       {"readings", ReadingsJson(rank.readings)}});
    }
  }
  const nlohmann::json out = {{"now_ns", SystemClock::Nanoseconds()}, {"rings", rings}};
  return JsonText(out);
}

std::string Agent::PathOf(absl::string_view ring) const {
  return absl::StrCat(options_.folder.empty() ? DefaultRecordFolder() : options_.folder, "/", ring);
}

HttpResponse Agent::Changes(absl::string_view rings) const {
  const std::vector<absl::string_view> asked = absl::StrSplit(rings, '/');
  if (asked.size() > kRingsOfARequest) {
    return {400, "text/plain", absl::StrCat("at most ", kRingsOfARequest, " rings at once\n")};
  }
  HttpResponse response{200, "application/octet-stream", ""};
  for (absl::string_view one : asked) {
    const std::pair<absl::string_view, absl::string_view> parts =
        absl::StrSplit(one, absl::MaxSplits('@', 1));
    const absl::StatusOr<RingCursor> cursor = ParseCursor(parts.second);
    if (!IsRingName(parts.first) || !cursor.ok()) {
      return {400, "text/plain", "right is /changes/JOB-RANK-PID.weft@MADE.RECORDS.NAMES.TEXT\n"};
    }
    const std::string changes = ChangesSince(PathOf(parts.first), *cursor).value_or("");
    const uint64_t size = changes.size();
    response.body.append(reinterpret_cast<const char*>(&size), sizeof(size));
    response.body += changes;
  }
  return response;
}

HttpResponse Agent::Answer(const HttpRequest& request) {
  HttpResponse response;
  absl::string_view path = request.path;
  if (path == "/metrics") {
    response.type = "text/plain; version=0.0.4; charset=utf-8";
    response.body = PrometheusText(CurrentMetrics());
  } else if (path == "/healthz") {
    response.body = "ok\n";
  } else if (path == "/rings") {
    response.type = "application/json";
    Read();
    response.body = RingsJson();
  } else if (path == "/diagnosis.json") {
    response.type = "application/json";
    std::vector<std::string> parts;
    response.body = "[";
    for (const auto& [name, watch] : jobs_) {
      absl::StrAppend(&response.body, response.body.size() > 1 ? "," : "",
                      ToJson(watch.view(), Diagnose(watch.view())));
    }
    response.body += ']';
  } else if (absl::ConsumePrefix(&path, "/ring/") && IsRingName(path)) {
    absl::StatusOr<std::string> bytes = ReadFile(PathOf(path), kRingMost);
    if (!bytes.ok()) return {404, "text/plain", "no such ring\n"};
    response.type = "application/octet-stream";
    response.body = *std::move(bytes);
  } else if (absl::ConsumePrefix(&path, "/changes/")) {
    return Changes(path);
  } else {
    return {404, "text/plain", "see /metrics, /diagnosis.json, /rings, /healthz\n"};
  }
  return response;
}

}  // namespace weft::observe
