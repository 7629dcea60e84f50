// What a site's scheduler is told: a host that a job has evicted is drained, so that nobody else is
// given it; a job that stops for want of hosts is queued again. Placing is the scheduler's.
#ifndef WEFT_TOOLS_DRIVER_SITE_H_
#define WEFT_TOOLS_DRIVER_SITE_H_

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace weft::driver {

struct Site {
  bool is_slurm = false;
  std::string slurm_job;  // of this allocation, as SLURM_JOB_ID; empty: the driver is in none
  std::string on_evict;   // a shell's command of the user's, besides; empty: none
};
// `name`: "none" or "slurm". kFailedPrecondition: there is no scontrol in PATH.
absl::StatusOr<Site> FindSite(absl::string_view name, std::string on_evict);

using Command = std::vector<std::string>;
// Of a host, each of which may be run twice. Empty: nobody is to be told.
std::vector<Command> EvictionCommands(const Site& site, const std::string& host,
                                      const std::string& why);
// Queues this allocation's job again, which ends it. Empty: it is in none.
Command RequeueCommand(const Site& site);

// Runs commands one after the other in a thread of its own, so that a slow scheduler holds up no
// driver. Each has half a minute.
class CommandQueue {
 public:
  // `say` is told what failed; from that thread.
  explicit CommandQueue(std::function<void(const std::string&)> say);
  ~CommandQueue();  // when all have been run
  CommandQueue(const CommandQueue&) = delete;
  CommandQueue& operator=(const CommandQueue&) = delete;
  void Push(std::string what, Command command);

 private:
  void Run();

  const std::function<void(const std::string&)> say_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<std::string, Command>> waiting_;
  bool ends_ = false;
  std::thread thread_;  // last: uses the others
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_SITE_H_
