#include "tools/run/observer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/socket_address.h"
#include "base/status.h"

namespace weft::run {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);

// The launcher's own bounds are wider than weft-diagnose's: it says something unasked.
observe::DiagnoseOptions Patient() {
  observe::DiagnoseOptions options;
  options.still_ns = 5'000'000'000;
  options.slow_ratio = 1.3;
  options.slow_steps = 10;
  return options;
}

}  // namespace

Observer::~Observer() {
  stop_.store(true);
  if (thread_.joinable()) thread_.join();
}

absl::StatusOr<std::string> Observer::ServeAgent(const std::string& address,
                                                 const std::string& token) {
  observe::AgentOptions options;
  options.folder = folder_;
  options.server.token = token;
  WEFT_ASSIGN_OR_RETURN(options.server.address, observe::ParseHttpAddress(address));
  WEFT_ASSIGN_OR_RETURN(agent_, observe::Agent::Start(options));
  thread_ = std::thread([this] {
    while (!stop_.load()) agent_->Turn();
  });
  return absl::StrCat("http://", JoinHostPort(options.server.address.host, agent_->port()),
                      "/metrics");
}

void Observer::OnEnded(int64_t pid, int wait_status, bool told_to_end) {
  MarkReaped(folder_, pid, wait_status, told_to_end, SystemClock::Nanoseconds());
  // How far it had come is decided on.
  watch_.Update(/*live=*/true, SystemClock::Nanoseconds());
}

int64_t Observer::LastStep(int rank) const {
  const auto seen = view().ranks.find(rank);
  if (seen == view().ranks.end() || seen->second.steps.empty()) return -1;
  return seen->second.steps.back().step;
}

std::vector<std::string> Observer::Lines(const std::vector<observe::Finding>& findings) {
  std::vector<std::string> lines;
  for (const observe::Finding& finding : findings) {
    for (std::string& line : std::vector<std::string>(
             absl::StrSplit(observe::ToText(finding), '\n', absl::SkipEmpty()))) {
      lines.push_back(std::move(line));
    }
  }
  return lines;
}

std::vector<std::string> Observer::Look(absl::Time now) {
  if (now < look_at_) return {};
  look_at_ = now + kPeriod;
  watch_.Update(/*live=*/true, SystemClock::Nanoseconds());
  if (!watch_.found()) return {};
  const std::vector<observe::Finding> findings = observe::Diagnose(watch_.view(), Patient());
  std::string key;
  for (const observe::Finding& finding : findings) {
    absl::StrAppend(&key, ToString(finding.fault), observe::RanksText(finding.culprits), ";");
  }
  // Said when it is there twice in a row, and not again while it stays.
  const bool stays = key == std::exchange(seen_, key);
  if (key.empty() || !stays || key == said_) return {};
  said_ = key;
  return Lines(findings);
}

std::vector<observe::Finding> Observer::Diagnose(const observe::DiagnoseOptions& options) {
  watch_.Update(/*live=*/true, SystemClock::Nanoseconds());
  if (!watch_.found()) return {};
  return observe::Diagnose(watch_.view(), options);
}

std::vector<std::string> Observer::Explain() {
  watch_.Update(/*live=*/true, SystemClock::Nanoseconds());
  if (!watch_.found()) return {};
  return Lines(observe::Diagnose(watch_.view(), Patient()));
}

}  // namespace weft::run
