// What a site's scheduler is told: a host that a job has evicted is drained, so that nobody else is
// given it; a job that stops for want of hosts is queued again (Slurm's). Placing is the
// scheduler's.
#ifndef WEFT_TOOLS_DRIVER_SITE_H_
#define WEFT_TOOLS_DRIVER_SITE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tools/driver/kubernetes.h"

namespace weft::driver {

struct Site {
  bool is_slurm = false;
  std::string slurm_job;  // of this allocation, as SLURM_JOB_ID; empty: the driver is in none
  std::optional<Kubernetes> kubernetes;
  std::string on_evict;  // a shell's command of the user's, besides; empty: none
};
// `name`: "none", "slurm" or "kubernetes". kFailedPrecondition: it is not there, with what is
// missing.
// `account`: of Kubernetes; empty: the pod's own.
absl::StatusOr<Site> FindSite(absl::string_view name, const std::string& account,
                              std::string on_evict);

using Errand = std::function<absl::Status()>;
// Of a host, each of which may be done twice. Empty: nobody is to be told. `site` outlives them.
std::vector<Errand> EvictionErrands(const Site& site, const std::string& host,
                                    const std::string& why);
// Queues this allocation's job again, which ends it. Null: it is in none.
Errand RequeueErrand(const Site& site);

// Does errands one after the other in a thread of its own, so that a slow scheduler holds up no
// driver.
class ErrandQueue {
 public:
  // `say` is told what failed; from that thread.
  explicit ErrandQueue(std::function<void(const std::string&)> say);
  ~ErrandQueue();  // when all have been done
  ErrandQueue(const ErrandQueue&) = delete;
  ErrandQueue& operator=(const ErrandQueue&) = delete;
  void Push(std::string what, Errand errand);

 private:
  void Run();

  const std::function<void(const std::string&)> say_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::string, Errand>> waiting_;
  bool ends_ = false;
  std::thread thread_;  // last: uses the others
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_SITE_H_
