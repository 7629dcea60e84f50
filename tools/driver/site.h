// What a site's scheduler is told: a host that a job has evicted is drained, so that nobody else is
// given it; a job that stops for want of hosts is queued again (Slurm's). Placing is the
// scheduler's.
#ifndef WEFT_TOOLS_DRIVER_SITE_H_
#define WEFT_TOOLS_DRIVER_SITE_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "base/clock.h"
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
// `account`: the folder of a service account of Kubernetes; empty: the pod's own. InvalidArgument
// where another site is given one.
absl::StatusOr<Site> FindSite(absl::string_view name, const std::string& account,
                              std::string on_evict);

using Errand = std::function<absl::Status()>;
// Tells the site of a host that is gone; what has succeeded is not done again when it is called
// again. May be done twice, by two drivers. `site` outlives it.
Errand EvictionErrand(const Site& site, const std::string& host, const std::string& why);
// Queues this allocation's job again, which ends it. Null: it is in none.
Errand RequeueErrand(const Site& site);

// Does errands one after the other in a thread of its own, so that a slow scheduler holds up no
// driver. An errand that fails is done again, 1 s later, then 2, 4, ... and 30 s at most; those
// behind it do not wait for it. Thread-safe.
class ErrandQueue {
 public:
  // `say` is told what failed; from that thread.
  explicit ErrandQueue(std::function<void(const std::string&)> say);
  ~ErrandQueue();  // when each that waits has been done once more
  ErrandQueue(const ErrandQueue&) = delete;
  ErrandQueue& operator=(const ErrandQueue&) = delete;
  // `number` names it to TakeDone().
  void Push(int64_t number, std::string what, Errand errand);
  // The numbers of the errands that have succeeded since the last call.
  std::vector<int64_t> TakeDone();

 private:
  struct Waiting {
    int64_t number = 0;
    std::string what;
    Errand errand;
    absl::Duration delay;  // after the last failure; 0: none yet
    absl::Time due;
  };
  void Run();
  // Blocks until one is due; none: all are done, and the queue ends.
  std::optional<Waiting> Next();

  const std::function<void(const std::string&)> say_;
  const SystemClock clock_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Waiting> waiting_;
  std::vector<int64_t> done_;
  bool ends_ = false;
  std::thread thread_;  // last: uses the others
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_SITE_H_
