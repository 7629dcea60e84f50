// weft-agent's work: one a host. Reads the rings of this user's processes, the host's counters and
// the processes' states, and serves them; pushes metrics to an OTLP sink if there is one. It only
// reads: a job does not notice whether it is there.
//
//   /metrics         Prometheus's text format
//   /diagnosis.json  what weft-diagnose says of each job
//   /rings           the rings, their processes' states and this host's clock, as JSON
//   /ring/NAME       the bytes of one
//   /changes/NAME@CURSOR/...  what is new in each since CURSOR (ring_changes.h), for weft-top,
//                    weft-trace and weft-diagnose on other hosts: for each its size, eight bytes in
//                    the order of this machine, and as many bytes; 0: there is no such ring
//   /healthz         "ok"
#ifndef WEFT_TOOLS_OBSERVE_AGENT_H_
#define WEFT_TOOLS_OBSERVE_AGENT_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/observe/http.h"
#include "tools/observe/prometheus.h"

namespace weft::observe {

struct AgentOptions {
  std::string folder;  // of rings; empty: DefaultRecordFolder()
  HttpServerOptions server;
  absl::Duration period = absl::Seconds(1);  // between readings of the rings
  std::optional<HttpAddress> otlp;           // of a sink's /v1/metrics
  absl::Duration push_period = absl::Seconds(10);
};

class Agent {
 public:
  static absl::StatusOr<std::unique_ptr<Agent>> Start(const AgentOptions& options);
  void Turn();  // at most a tenth of a second
  int port() const { return server_.port(); }
  HttpResponse Answer(const HttpRequest& request);

 private:
  Agent(const AgentOptions& options, HttpServer server)
      : options_(options), server_(std::move(server)) {}
  void Read();
  void Push();
  std::vector<Metric> CurrentMetrics();
  std::string RingsJson() const;
  HttpResponse Changes(absl::string_view rings) const;
  std::string PathOf(absl::string_view ring) const;

  const AgentOptions options_;
  HttpServer server_;
  std::map<std::string, JobWatch> jobs_;
  absl::Time read_at_ = absl::InfinitePast(), push_at_ = absl::InfinitePast();
  AgentCounters counters_;
};

// A ring's file name, without a folder and nothing else.
bool IsRingName(absl::string_view name);
inline constexpr size_t kRingsOfARequest = 32;  // of /changes; names fit into kRequestBytesMax

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_AGENT_H_
