#include "tools/recovery/job_diagnosis.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tools/observe/source.h"

namespace weft::recovery {
namespace {

constexpr absl::Duration kPeriod = absl::Seconds(1);
}  // namespace

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
  const observe::DiagnoseOptions options = JudgedDiagnosis(still_);
  std::unique_ptr<observe::Source> source;
  std::string problem;  // why there is nothing to read from, as it was said last
  while (true) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      changed_.wait_for(lock, absl::ToChronoMilliseconds(kPeriod), [this] { return ends_; });
      if (ends_) return;
      if (std::exchange(new_agents_, false)) {
        source = std::make_unique<observe::Source>(job_, agents_);
        source->SetSay([this](const std::string& line) { Say(line); });
      }
      if (agents_.empty()) continue;
    }
    const absl::Status updated = source->Update();
    if (updated.ok()) Look(observe::Diagnose(source->view(), options));
    if (source->is_ready()) continue;  // it says itself which agents do not answer
    const std::string why = absl::StrCat("there is none: ", updated.message());
    if (std::exchange(problem, why) != why) Say(why);
  }
}

void JobDiagnosis::Say(std::string line) {
  const std::lock_guard<std::mutex> lock(mutex_);
  news_.lines.push_back(std::move(line));
}

void JobDiagnosis::Look(const std::vector<observe::Finding>& findings) {
  FindingJudge::News news = judge_.Look(findings);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (Diagnosed& one : news.diagnosed) news_.diagnosed.push_back(std::move(one));
  for (std::string& line : news.lines) news_.lines.push_back(std::move(line));
}

}  // namespace weft::recovery
