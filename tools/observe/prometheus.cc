#include "tools/observe/prometheus.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/json_text.h"
#include "base/version.h"
#include "tools/observe/valid_utf8.h"

namespace weft::observe {
namespace {

using Labels = std::vector<std::pair<std::string, std::string>>;

class Builder {
 public:
  Metric& At(const std::string& name, const std::string& help, bool counter = false) {
    const auto found = index_.find(name);
    if (found != index_.end()) return metrics_[found->second];
    index_[name] = metrics_.size();
    metrics_.push_back({name, help, counter, {}});
    return metrics_.back();
  }
  void Gauge(const std::string& name, const std::string& help, Labels labels, double value) {
    At(name, help).samples.push_back({std::move(labels), value});
  }
  void Counter(const std::string& name, const std::string& help, Labels labels, double value) {
    At(name, help, true).samples.push_back({std::move(labels), value});
  }
  std::vector<Metric> Take() { return std::move(metrics_); }

 private:
  std::vector<Metric> metrics_;
  std::map<std::string, size_t> index_;
};

double Seconds(int64_t ns) { return static_cast<double>(ns) * 1e-9; }

void AddSteps(const RankView& rank, const Labels& labels, Builder* out) {
  if (rank.steps.empty()) return;
  const StepTimes& last = rank.steps.back();
  out->Gauge("weft_rank_step_duration_seconds", "Duration of the rank's last step.", labels,
             last.total());
  out->Gauge("weft_rank_exposed_communication_ratio",
             "Part of the rank's last step in which it waited for communication.", labels,
             last.total() > 0 ? last.waiting() / last.total() : 0);
  out->Gauge("weft_rank_loss", "Loss of the rank's last step.", labels, last.loss);
  for (const auto& [phase, seconds] : last.seconds) {
    Labels with = labels;
    with.emplace_back("phase", phase);
    out->Gauge("weft_rank_phase_duration_seconds",
               "Time of the last step in each phase, without the phases within it.", with, seconds);
  }
}

void AddFlows(const RankView& rank, const Labels& labels, Builder* out) {
  struct Sum {
    uint64_t bytes = 0, repeats = 0;
    uint32_t outstanding = 0, stuck_ms = 0, rtt_us = 0;
  };
  std::map<std::pair<std::string, bool>, Sum> sums;
  for (const auto& [key, flow] : rank.flows) {
    Sum& sum = sums[{flow.transport, key.second}];
    sum.bytes += flow.record.bytes_done;
    sum.repeats += flow.record.repeats;
    sum.outstanding += flow.record.outstanding;
    sum.rtt_us = std::max(sum.rtt_us, flow.record.rtt_us);
    if (flow.record.outstanding > 0) sum.stuck_ms = std::max(sum.stuck_ms, flow.record.stuck_ms);
  }
  for (const auto& [key, sum] : sums) {
    Labels with = labels;
    with.emplace_back("transport", key.first);
    with.emplace_back("direction", key.second ? "send" : "receive");
    out->Counter("weft_flow_bytes_total", "Bytes of messages that are done.", with,
                 static_cast<double>(sum.bytes));
    out->Counter("weft_flow_repeats_total", "Packets, pieces or sockets that were repeated.", with,
                 static_cast<double>(sum.repeats));
    out->Gauge("weft_flow_outstanding_messages", "Messages that are posted and not done.", with,
               sum.outstanding);
    out->Gauge("weft_flow_stuck_seconds",
               "Longest time for which a link with something outstanding has stood still.", with,
               sum.stuck_ms * 1e-3);
    if (sum.rtt_us > 0) {
      out->Gauge("weft_flow_round_trip_seconds", "Longest smoothed round trip of a link.", with,
                 sum.rtt_us * 1e-6);
    }
  }
}

// The readings of devices, of the kernel's log and of the rank itself. Readings of RDMA ports are
// the host's, and stand in weft_host_rdma_events_total.
void AddReadings(const RankView& rank, const Labels& labels, Builder* out) {
  constexpr size_t kReadingsMax = 128;
  size_t added = 0;
  for (const auto& [key, reading] : rank.readings) {
    if (!reading.known || !std::isfinite(reading.last)) continue;
    if (added++ == kReadingsMax) break;
    Labels with = labels;
    with.emplace_back("source", key.first);
    with.emplace_back("reading", key.second);
    out->Gauge("weft_rank_reading", "Last value of what a device, the kernel or the rank says.",
               with, reading.last);
    out->Gauge("weft_rank_reading_growth", "The same, less its first value.", with, reading.grew());
  }
}

void AddRank(const JobView& job, const RankView& rank, Builder* out) {
  const Labels labels = {{"job", job.job}, {"rank", absl::StrCat(rank.rank())}};
  const bool ended_well = rank.ended_well();
  if (!ended_well) {
    out->Gauge("weft_rank_up",
               "1 while the rank's process is there and not stopped; nothing once it has ended in "
               "good order.",
               labels, rank.state.exists && !rank.state.stopped() && rank.state.state != 'Z');
  }
  out->Gauge("weft_rank_step", "Training step under way.", labels,
             static_cast<double>(rank.process.step));
  out->Gauge("weft_rank_open_calls", "Collectives and messages under way.", labels,
             static_cast<double>(rank.open.size()));
  int64_t oldest_ns = job.now_ns;
  for (const Call& call : rank.open) {
    if (!ended_well) oldest_ns = std::min(oldest_ns, call.record.start_ns);
  }
  out->Gauge("weft_rank_oldest_call_age_seconds", "Age of the oldest call under way.", labels,
             Seconds(job.now_ns - oldest_ns));
  AddSteps(rank, labels, out);
  AddFlows(rank, labels, out);
  if (rank.state.exists) {
    out->Counter("weft_process_cpu_seconds_total", "Processor time of the process.", labels,
                 rank.state.cpu_seconds);
    out->Counter("weft_process_run_queue_seconds_total",
                 "Time in which its threads were ready and had no core, summed.", labels,
                 rank.state.run_queue_seconds);
    out->Gauge("weft_process_resident_memory_bytes", "Memory of the process.", labels,
               static_cast<double>(rank.state.resident_bytes));
    for (const auto& [kind, faults] : {std::pair("minor", rank.state.minor_faults),
                                       std::pair("major", rank.state.major_faults)}) {
      Labels with = labels;
      with.emplace_back("kind", kind);
      out->Counter("weft_process_page_faults_total",
                   "Pages that were not mapped; major: that came from a disk.", with,
                   static_cast<double>(faults));
    }
  }
  AddReadings(rank, labels, out);
  out->Counter("weft_records_written_total", "Records that the process has written.", labels,
               static_cast<double>(rank.written));
  out->Counter("weft_records_lost_total",
               "Records that were overwritten before the agent read them.", labels,
               static_cast<double>(rank.lost));
}

// A label's value between its quotes. Of a page with bytes that are no UTF-8 Prometheus would take
// nothing.
std::string Escaped(const std::string& value) {
  return absl::StrReplaceAll(ValidUtf8(value), {{"\\", "\\\\"}, {"\"", "\\\""}, {"\n", "\\n"}});
}

std::string Number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return nlohmann::json(value).dump();
}

}  // namespace

std::vector<Metric> Metrics(const std::vector<JobView>& jobs,
                            const std::vector<std::vector<Finding>>& findings,
                            const HostCounters& host, const AgentCounters& agent) {
  Builder out;
  out.Gauge("weft_agent_info", "The agent that answers.", {{"version", std::string(Version())}}, 1);
  for (size_t i = 0; i < jobs.size(); ++i) {
    const JobView& job = jobs[i];
    const Labels labels = {{"job", job.job}};
    out.Gauge("weft_job_ranks", "Ranks of the job whose records are on this host.", labels,
              static_cast<double>(job.ranks.size()));
    out.Gauge("weft_job_world_size", "Ranks of the job.", labels, job.world_size);
    for (const auto& [number, rank] : job.ranks) AddRank(job, rank, &out);
    std::map<std::pair<std::string, std::string>, int> count;
    for (const Finding& finding : findings[i]) {
      ++count[{ToString(finding.fault), ToString(finding.component)}];
    }
    for (const auto& [what, times] : count) {
      out.Gauge("weft_job_findings", "What weft-diagnose names now.",
                {{"job", job.job}, {"fault", what.first}, {"component", what.second}}, times);
    }
  }
  for (const auto& [interface, counters] : host.interfaces) {
    for (const auto& [name, value] : counters) {
      out.Counter(absl::StrCat("weft_host_interface_", name, "_total"),
                  "The kernel's counter of this name.", {{"interface", interface}},
                  static_cast<double>(value));
    }
  }
  for (const auto& [port, counters] : host.rdma) {
    for (const auto& [name, value] : counters) {
      out.Counter("weft_host_rdma_events_total",
                  "Counters of RDMA ports that tell of loss, congestion or a bad link.",
                  {{"port", port}, {"counter", name}}, static_cast<double>(value));
    }
  }
  out.Gauge("weft_host_load", "Load average of one minute.", {}, host.load);
  if (host.cpu_pressure >= 0) {
    out.Gauge("weft_host_cpu_pressure_ratio",
              "Part of the last 10 s in which something waited for a core.", {}, host.cpu_pressure);
  }
  const auto own = [&](const char* name, const char* help, uint64_t value) {
    out.Counter(name, help, {}, static_cast<double>(value));
  };
  own("weft_agent_pushes_total", "Pushes to the OTLP sink that it took.", agent.pushes);
  own("weft_agent_push_failures_total", "Pushes that it did not take.", agent.push_failures);
  own("weft_agent_rows_dropped_total", "Values that were not delivered.", agent.pushes_dropped);
  own("weft_agent_requests_turned_away_total", "Requests that were bad or had no right.",
      agent.requests_turned_away);
  out.Gauge("weft_agent_unreadable_rings", "Files of records that cannot be read.", {},
            static_cast<double>(agent.unreadable_rings));
  return out.Take();
}

std::string PrometheusText(const std::vector<Metric>& metrics) {
  std::string text;
  for (const Metric& metric : metrics) {
    absl::StrAppend(&text, "# HELP ", metric.name, " ",
                    absl::StrReplaceAll(metric.help, {{"\\", "\\\\"}, {"\n", "\\n"}}), "\n# TYPE ",
                    metric.name, " ", metric.counter ? "counter" : "gauge", "\n");
    for (const Sample& sample : metric.samples) {
      absl::StrAppend(&text, metric.name);
      const char* separator = "{";
      for (const auto& [name, value] : sample.labels) {
        absl::StrAppend(&text, separator, name, "=\"", Escaped(value), "\"");
        separator = ",";
      }
      absl::StrAppend(&text, sample.labels.empty() ? " " : "} ", Number(sample.value), "\n");
    }
  }
  return text;
}

std::string OtlpMetricsJson(const std::vector<Metric>& metrics, int64_t time_unix_ns) {
  const std::string time = absl::StrCat(time_unix_ns);  // 64-bit numbers are texts in OTLP's JSON
  nlohmann::json rows = nlohmann::json::array();
  for (const Metric& metric : metrics) {
    nlohmann::json points = nlohmann::json::array();
    for (const Sample& sample : metric.samples) {
      if (!std::isfinite(sample.value)) continue;
      nlohmann::json attributes = nlohmann::json::array();
      for (const auto& [name, value] : sample.labels) {
        attributes.push_back({{"key", name}, {"value", {{"stringValue", value}}}});
      }
      points.push_back(
          {{"timeUnixNano", time}, {"asDouble", sample.value}, {"attributes", attributes}});
    }
    nlohmann::json row = {{"name", metric.name}, {"description", metric.help}};
    if (metric.counter) {
      row["sum"] = {{"aggregationTemporality", 2}, {"isMonotonic", true}, {"dataPoints", points}};
    } else {
      row["gauge"] = {{"dataPoints", points}};
    }
    rows.push_back(std::move(row));
  }
  nlohmann::json resource;
  resource["resource"]["attributes"] = nlohmann::json::array();
  for (const auto& [name, value] :
       {std::pair("service.name", "weft-agent"), std::pair("service.version", Version())}) {
    resource["resource"]["attributes"].push_back(
        {{"key", name}, {"value", {{"stringValue", value}}}});
  }
  nlohmann::json scope;
  scope["scope"]["name"] = "weft";
  scope["metrics"] = std::move(rows);
  resource["scopeMetrics"] = nlohmann::json::array({std::move(scope)});
  nlohmann::json out;
  out["resourceMetrics"] = nlohmann::json::array({std::move(resource)});
  return JsonText(out);
}

}  // namespace weft::observe
