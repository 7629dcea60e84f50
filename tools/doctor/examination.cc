#include "tools/doctor/examination.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/status.h"
#include "tools/doctor/checks.h"
#include "tools/doctor/report.h"
#include "tools/job/job.h"

namespace weft::doctor {
namespace {

constexpr absl::Duration kReportsTimeout = absl::Minutes(10);

// What one rank tells the others: its host, what is wrong with it, and how its sends went.
std::string PartOf(const Node& node, const Findings& findings,
                   const std::vector<Direction>& directions) {
  nlohmann::ordered_json part = NodeJson(node);
  AddFindings(findings, part);
  part["pairs"] = PairsJson(directions);
  return JsonText(part);
}

}  // namespace

absl::StatusOr<HostExamination> ExamineHost(const std::string& root, absl::Duration watch) {
  HostExamination out;
  WEFT_ASSIGN_OR_RETURN(out.node, ReadNode(root));
  out.findings = Examine(out.node);
  if (watch > absl::ZeroDuration()) {
    absl::SleepFor(watch);
    WEFT_ASSIGN_OR_RETURN(auto devices, net::ReadRdmaDevices(root));
    CheckGrowth(CountersOf(out.node.devices), CountersOf(devices), watch, out.findings);
  }
  return out;
}

absl::StatusOr<JobExamination> ExamineJob(const Settings& settings, const std::string& root,
                                          const PairOptions& options) {
  WEFT_ASSIGN_OR_RETURN(Node node, ReadNode(root));
  WEFT_ASSIGN_OR_RETURN(job::Joined joined, job::Join(settings, "weft-doctor"));
  JobExamination out;
  out.rank = joined.environment.rank.value();
  const int ranks = joined.environment.world_size;
  if (ranks < 2) {
    return absl::FailedPreconditionError(
        "pairs needs at least two ranks: weft-run -n 2 -- weft-doctor pairs, or --ranks 2");
  }
  const absl::Time start = SystemClock().Now();
  WEFT_ASSIGN_OR_RETURN(std::vector<Direction> mine, TestPairs(joined, options));
  WEFT_ASSIGN_OR_RETURN(auto devices, net::ReadRdmaDevices(root));
  Findings own = Examine(node);
  CheckGrowth(CountersOf(node.devices), CountersOf(devices), SystemClock().Now() - start, own);
  WEFT_ASSIGN_OR_RETURN(std::vector<std::string> parts,
                        joined.store->AllGather("weft-doctor/parts", out.rank, ranks,
                                                PartOf(node, own, mine), kReportsTimeout));
  WEFT_ASSIGN_OR_RETURN(JobParts job, JobParts::Parse(parts));
  out.findings = job.Judge();
  out.hosts = std::move(job.names);
  out.directions = std::move(job.directions);
  return out;
}

}  // namespace weft::doctor
