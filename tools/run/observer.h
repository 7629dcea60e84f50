// What the launcher sees of its ranks by their records: says so when the job stands still, and why
// it failed; writes into the ring of a rank that has ended how it ended; and serves weft-agent's
// pages in a thread, where that is asked for. It only looks: a job runs the same without it.
#ifndef WEFT_TOOLS_RUN_OBSERVER_H_
#define WEFT_TOOLS_RUN_OBSERVER_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "tools/observe/agent.h"
#include "tools/observe/diagnose.h"

namespace weft::run {

class Observer {
 public:
  // `folder` of the rings; empty: the default.
  Observer(const std::string& folder, const std::string& job)
      : folder_(folder), watch_(folder, job) {}
  ~Observer();

  // Serves at `address` until the end; returns where, "http://127.0.0.1:9400/metrics". `token`:
  // empty: none is asked for, on loopback alone.
  absl::StatusOr<std::string> ServeAgent(const std::string& address, const std::string& token = "");
  int agent_port() const { return agent_ == nullptr ? 0 : agent_->port(); }
  // Before other ranks are told to end because of it.
  void OnEnded(int64_t pid, int wait_status, bool told_to_end);
  // Lines to be said, if any; each finding once. At most every second by itself.
  std::vector<std::string> Look(absl::Time now);
  // Looks anew, and diagnoses within these bounds; nothing while there are no records.
  std::vector<observe::Finding> Diagnose(const observe::DiagnoseOptions& options);
  // The step that a rank has done last; -1: not known.
  int64_t LastStep(int rank) const;
  // As of the last look.
  const observe::JobView& view() const { return watch_.view(); }
  // Why the job failed, as far as the records tell.
  std::vector<std::string> Explain();

 private:
  std::vector<std::string> Lines(const std::vector<observe::Finding>& findings);

  const std::string folder_;
  observe::JobWatch watch_;
  absl::Time look_at_ = absl::InfinitePast();
  std::string said_, seen_;  // the finding that was said last; that was there at the last look
  std::unique_ptr<observe::Agent> agent_;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_OBSERVER_H_
