// Jobs, their ranks and the host as Prometheus's text format 0.0.4: base units, `_total` for
// counters, ratios from 0 to 1. Labels are bounded: job, rank, phase, transport, direction, group;
// no step, no sequence number, no pair of ranks.
#ifndef WEFT_TOOLS_OBSERVE_PROMETHEUS_H_
#define WEFT_TOOLS_OBSERVE_PROMETHEUS_H_

#include <string>
#include <vector>

#include "tools/observe/diagnose.h"
#include "tools/observe/host_counters.h"
#include "tools/observe/job_view.h"

namespace weft::observe {

struct AgentCounters {
  uint64_t pushes = 0, push_failures = 0;
  uint64_t pushes_dropped = 0;  // rows that a sink did not take in time
  uint64_t requests_turned_away = 0;
  uint64_t unreadable_rings = 0;
};

struct Sample {
  std::vector<std::pair<std::string, std::string>> labels;
  double value = 0;
};
struct Metric {
  std::string name, help;
  bool counter = false;  // else a gauge
  std::vector<Sample> samples;
};

// The metrics of these jobs, each with what is found of it.
std::vector<Metric> Metrics(const std::vector<JobView>& jobs,
                            const std::vector<std::vector<Finding>>& findings,
                            const HostCounters& host, const AgentCounters& agent);
std::string PrometheusText(const std::vector<Metric>& metrics);
// The body of an OTLP/HTTP request to /v1/metrics, in JSON.
std::string OtlpMetricsJson(const std::vector<Metric>& metrics, int64_t time_unix_ns);

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_PROMETHEUS_H_
