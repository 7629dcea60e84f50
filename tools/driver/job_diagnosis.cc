#include "tools/driver/job_diagnosis.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "tools/observe/source.h"

namespace weft::driver {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);
// A finding counts when it is there in so many looks in a row.
constexpr int kLooks = 2;

std::string LineOf(const observe::Finding& finding) {
  std::string text = absl::StrCat(ToString(finding.fault), " (", ToString(finding.component), ")");
  if (!finding.culprits.empty()) {
    absl::StrAppend(&text, " of ", observe::RanksText(finding.culprits));
  }
  if (!finding.evidence.empty()) absl::StrAppend(&text, ": ", finding.evidence.front());
  return absl::StrReplaceAll(text, {{"\n", " "}});
}

}  // namespace

std::optional<Blame> BlameOf(observe::Fault fault) {
  using observe::Fault;
  switch (fault) {
    case Fault::kDeviceError:
    case Fault::kHostError:
    case Fault::kNicDown:
    case Fault::kLinkFlaps:
    case Fault::kStoppedHost:
      return Blame::kHost;
    case Fault::kStoppedRank:
    case Fault::kHangOutside:
    case Fault::kLivelock:
    case Fault::kReceiverNotPosting:
      return Blame::kRank;
    case Fault::kNotFinite:
    case Fault::kReplicaDiffers:
      return Blame::kNumbers;
    default:
      return std::nullopt;
  }
}

JobDiagnosis::JobDiagnosis(std::string job, absl::Duration still)
    : job_(std::move(job)), still_(still), thread_([this] { Run(); }) {}

JobDiagnosis::~JobDiagnosis() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ends_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void JobDiagnosis::SetAgents(std::map<std::string, std::string> agents) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (agents == agents_) return;
  agents_ = std::move(agents);
  new_agents_ = true;
}

JobDiagnosis::News JobDiagnosis::Take() {
  const std::lock_guard<std::mutex> lock(mutex_);
  return std::exchange(news_, {});
}

void JobDiagnosis::Run() {
  observe::DiagnoseOptions options;
  options.still_ns = absl::ToInt64Nanoseconds(still_);
  options.slow_ratio = 1.3;
  options.slow_steps = 10;
  std::unique_ptr<observe::Source> source;
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, absl::ToChronoMilliseconds(kPeriod), [this] { return ends_; });
      if (ends_) return;
      if (std::exchange(new_agents_, false)) {
        source = std::make_unique<observe::Source>(job_, agents_);
      }
      if (agents_.empty()) continue;
    }
    if (source->Update().ok()) Look(observe::Diagnose(source->view(), options));
  }
}

void JobDiagnosis::Look(const std::vector<observe::Finding>& findings) {
  std::map<std::string, int> now;
  for (const observe::Finding& finding : findings) {
    const std::string key =
        absl::StrCat(ToString(finding.fault), " ", absl::StrJoin(finding.culprits, ","));
    const int looks = now[key] = seen_[key] + 1;
    if (looks != kLooks) continue;
    const std::string line = LineOf(finding);
    const std::optional<Blame> blame = BlameOf(finding.fault);
    const std::lock_guard<std::mutex> lock(mutex_);
    news_.lines.push_back(line);
    if (!blame.has_value() || finding.culprits.empty()) continue;
    // Several are all ranks of one host; else it is not known who it is.
    if (finding.culprits.size() == 1 || blame == Blame::kHost) {
      news_.diagnosed.push_back({finding.culprits.front(), *blame, line});
    }
  }
  seen_ = std::move(now);
}

}  // namespace weft::driver
