#include "tools/driver/rank_records.h"

#include <algorithm>
#include <utility>

#include "absl/status/statusor.h"
#include "base/socket_address.h"
#include "net/secret.h"
#include "tools/observe/job_view.h"

namespace weft::driver {
namespace {

constexpr size_t kFindingsMost = 10;  // in a report

}  // namespace

void RankRecords::Open(const std::string& folder, const std::string& job) {
  observer_ = std::make_unique<run::Observer>(folder, job);
  agent_token_ = net::SecretToHex(net::NewJobSecret());
}

absl::Status RankRecords::Serve(const std::string& address) {
  // "::" is every address of both families, where the host has IPv6.
  absl::StatusOr<std::string> served = observer_->ServeAgent("[::]:0", agent_token_);
  if (!served.ok()) served = observer_->ServeAgent("0.0.0.0:0", agent_token_);
  if (served.ok()) agent_ = JoinHostPort(address, observer_->agent_port());
  return served.status();
}

void RankRecords::OnEnded(const run::RankProcess& rank) {
  observer_->OnEnded(rank.pid, rank.status, rank.told_to_end);
}

std::vector<std::string> RankRecords::Look(absl::Time now) {
  std::vector<std::string> lines = observer_->Look(now);
  findings_.insert(findings_.end(), lines.begin(), lines.end());
  if (findings_.size() > kFindingsMost) {
    findings_.erase(findings_.begin(), findings_.end() - kFindingsMost);
  }
  return lines;
}

int64_t RankRecords::BytesOf(int rank) const {
  int64_t bytes = 0;
  const auto view = observer_->view().ranks.find(rank);
  if (view == observer_->view().ranks.end()) return 0;
  for (const auto& [_, flow] : view->second.flows) {
    bytes += static_cast<int64_t>(flow.record.bytes_done);
  }
  return bytes;
}

RankRecords::Progress RankRecords::ProgressOf(const std::vector<run::RankProcess>& ranks, int node,
                                              int ranks_per_node) const {
  Progress out{.step = INT64_MAX};
  for (const run::RankProcess& rank : ranks) {
    const auto view = observer_->view().ranks.find(rank.rank);
    if (view == observer_->view().ranks.end() || view->second.steps.empty()) {
      out.step = -1;
      continue;
    }
    const observe::StepTimes& last = view->second.steps.back();
    out.step = std::min(out.step, last.step);
    out.step_time = std::max(out.step_time, absl::Seconds(last.total()));
    for (const auto& [end, flow] : view->second.flows) {
      const auto& [peer, sends] = end;
      if (!sends && peer / ranks_per_node != node) out.bytes += flow.record.bytes_done;
    }
  }
  return out;
}

void RankRecords::Report(HostReport& report) const {
  report.agent = agent_;
  report.agent_token = agent_token_;
  report.findings = findings_;
}

}  // namespace weft::driver
