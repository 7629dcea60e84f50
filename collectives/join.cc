#include "collectives/join.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/host_name.h"
#include "base/status.h"
#include "collectives/rendezvous/fast_init.h"

namespace weft::collectives {
namespace {

// Rank 0 waits this long for the others to have made their groups too; without their times there is
// no report, and the job goes on.
constexpr absl::Duration kReportPatience = absl::Seconds(10);

class Stopwatch {
 public:
  absl::Duration Lap() {
    const int64_t now_ns = SystemClock::Nanoseconds();
    return absl::Nanoseconds(now_ns - std::exchange(start_ns_, now_ns));
  }

 private:
  int64_t start_ns_ = SystemClock::Nanoseconds();
};

std::string Sentence(const PhaseReport& report, int ranks) {
  const auto longest = std::max_element(report.phases.begin(), report.phases.end(),
                                        [](const auto& a, const auto& b) { return a.max < b.max; });
  double total = 0;
  std::string text;
  for (const PhaseReport::Phase& phase : report.phases) {
    total += phase.max;
    absl::StrAppendFormat(&text, "%s%s %.1f", text.empty() ? "" : ", ", phase.name,
                          phase.max * 1e3);
  }
  return absl::StrFormat("%d ranks joined in %.1f ms: %s; slowest in %s: rank %d on %s", ranks,
                         total * 1e3, text, longest->name, longest->slowest, longest->host);
}

// What phases took on the slowest ranks. A report that fails is none.
std::string Report(const JoinOptions& options, const Job& job, const std::string& prefix,
                   const StartPhases& phases) {
  FastInitOptions report;
  report.mesh = job.endpoint->mesh();
  report.rank = job.environment.rank.value();
  report.prefix = prefix;  // the same for processes of all generations
  report.host = HostName();
  report.timeout = std::min(kReportPatience, options.settings.Duration("store.timeout"));
  const absl::StatusOr<PhaseReport> gathered = ReportPhases(*job.store, report, phases);
  if (!gathered.ok()) return absl::StrCat("joined; ", gathered.status().message());
  if (gathered->phases.empty()) return "";
  return Sentence(*gathered, job.environment.world_size);
}

}  // namespace

absl::StatusOr<std::shared_ptr<Store>> ConnectJobStore(const JoinOptions& options,
                                                       JobEnvironment environment) {
  if (options.store != nullptr) return options.store;
  const absl::Duration timeout = options.settings.Duration("store.timeout");
  if (environment.torch_agent_store && environment.store.empty()) {
    if (options.agent_store) return options.agent_store(environment, timeout);
    environment.torch_agent_store = false;
    ++environment.master_port;
  }
  WEFT_ASSIGN_OR_RETURN(JobStore store, StoreFromEnvironment(environment, timeout));
  auto kept = std::make_shared<JobStore>(std::move(store));
  return std::shared_ptr<Store>(kept, kept->store.get());
}

absl::StatusOr<Job> JoinJob(JoinOptions options) {
  Job job;
  Stopwatch watch;
  if (options.environment.has_value()) {
    job.environment = *options.environment;
  } else {
    WEFT_ASSIGN_OR_RETURN(job.environment, JobEnvironment::FromEnvironment());
  }
  RejoinableOptions endpoint;
  if (options.mesh) {
    WEFT_ASSIGN_OR_RETURN(endpoint.mesh, options.mesh(job.environment.world_size));
  }
  WEFT_ASSIGN_OR_RETURN(job.store, ConnectJobStore(options, job.environment));
  StartPhases phases = {{"store", watch.Lap()}};
  endpoint.rank = job.environment.rank;
  endpoint.world_size = job.environment.world_size;
  endpoint.generation = job.environment.generation;
  endpoint.store = job.store.get();
  endpoint.job = job.environment.job;
  if (!options.program.empty()) absl::StrAppend(&endpoint.job, "/", options.program);
  endpoint.secret = job.environment.secret;
  endpoint.settings = options.settings;
  endpoint.rejoins = options.rejoins;
  endpoint.rejoining = options.rejoining;
  const std::string prefix = endpoint.job;
  WEFT_ASSIGN_OR_RETURN(std::shared_ptr<Endpoint> made, CreateRejoinable(std::move(endpoint)));
  for (const auto& phase : made->start_phases()) phases.push_back(phase);
  // Groups keep the endpoint alive, and the endpoint uses the store until its end.
  struct Kept {
    std::shared_ptr<Store> store;
    std::shared_ptr<Endpoint> endpoint;
  };
  auto kept = std::make_shared<Kept>(Kept{job.store, std::move(made)});
  job.endpoint = std::shared_ptr<Endpoint>(kept, kept->endpoint.get());
  watch.Lap();
  if (options.make_groups) WEFT_RETURN_IF_ERROR(options.make_groups(job.endpoint));
  phases.emplace_back("groups", watch.Lap());
  const bool wants_report = options.wants_report && !options.rejoining.has_value();
  if (wants_report && job.environment.world_size > 1) {
    job.report = Report(options, job, prefix, phases);
  }
  return job;
}

}  // namespace weft::collectives
