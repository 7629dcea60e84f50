// What the records of all ranks of a job say is wrong with it: reads the agents that the executors
// serve (tools/observe/agent.h), hosts apart, and diagnoses the job as a whole, since on one host a
// victim looks like a culprit. A thread of its own, so that hosts that do not answer hold up no
// driver; thread-safe.
#ifndef WEFT_TOOLS_RECOVERY_JOB_DIAGNOSIS_H_
#define WEFT_TOOLS_RECOVERY_JOB_DIAGNOSIS_H_

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"
#include "tools/observe/diagnose.h"
#include "tools/recovery/finding_judge.h"

namespace weft::recovery {

class JobDiagnosis {
 public:
  // A job that stands still is diagnosed after `still`; other findings when they are there twice in
  // a row.
  JobDiagnosis(std::string job, absl::Duration still);
  ~JobDiagnosis();
  JobDiagnosis(const JobDiagnosis&) = delete;
  JobDiagnosis& operator=(const JobDiagnosis&) = delete;

  // Where agents are, "host:port", and the token of each.
  void SetAgents(std::map<std::string, std::string> agents);
  // What is new since the last call: for the driver, and all of it in lines for people.
  using News = FindingJudge::News;
  News Take();

 private:
  void Run();
  void Say(std::string line);
  void Look(const std::vector<observe::Finding>& findings);

  const std::string job_;
  const absl::Duration still_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> agents_;
  bool ends_ = false, new_agents_ = false;
  News news_;
  FindingJudge judge_;  // of the thread
  std::thread thread_;
};

}  // namespace weft::recovery

#endif  // WEFT_TOOLS_RECOVERY_JOB_DIAGNOSIS_H_
