// What a host does beside its ranks when its driver says so: tests itself, helps with the test of
// another host, replays a step. One at a time, each as a process of its own; a test or a replay of
// this host ends what it finds.
//
// Used by the executor's thread.
#ifndef WEFT_TOOLS_DRIVER_SIDE_TASKS_H_
#define WEFT_TOOLS_DRIVER_SIDE_TASKS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "tools/driver/host_executor.h"
#include "tools/driver/orders.h"
#include "tools/driver/records.h"
#include "tools/run/host_ranks.h"
#include "tools/run/rank_environment.h"
#include "tools/run/rank_process.h"

namespace weft::driver {

class SideTasks {
 public:
  // Both outlive this object.
  SideTasks(const ExecutorOptions& options, run::HostRanks& host)
      : options_(options), host_(host) {}

  // `variables`: those of this host's ranks.
  void BeginTest(const Order& order, const run::Variables& variables);
  // The result is the suspected host's. Nothing where something else runs.
  void Help(const Order& order, const run::Variables& variables);
  void BeginReplay(const Order& order);
  bool helps() const { return host_.runs_aside() && kind_ == Kind::kHelp; }

  // Takes what has ended, and ends what takes too long. True: there is a new result.
  bool Take();
  // The results of the last test and of the last replay.
  void Report(HostReport& report) const;

 private:
  enum class Kind : uint8_t { kTest, kHelp, kReplay };

  run::Variables PairVariables(run::Variables variables, int64_t test, int rank) const;
  void EndTest(bool passed, std::string text);
  void StartReplayPart();
  void EndReplayPart(const run::RankProcess& process);
  void EndReplayPart(const std::string& digest, const std::string& problem);

  const ExecutorOptions& options_;
  run::HostRanks& host_;
  SystemClock clock_;
  Kind kind_ = Kind::kTest;  // what runs, or ran last
  absl::Time kill_at_ = absl::InfiniteFuture();
  bool has_news_ = false;
  int64_t test_ = 0;    // the number of the last self-test that has begun ...
  int64_t tested_ = 0;  // ... and of the last that is done
  bool passed_ = false;
  std::string test_text_;
  int64_t replay_ = 0;    // the task of the last replay that has begun ...
  int64_t replayed_ = 0;  // ... and of one all of whose parts are done
  std::vector<ReplayPart> parts_;
  std::vector<std::string> digests_;  // of the parts that are done
  std::string replay_text_;
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_SIDE_TASKS_H_
