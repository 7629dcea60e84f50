// The driver of a job: reads what the hosts report, decides (decisions.h), and writes down what
// ought to run, which the hosts' executors then see to (host_executor.h). Whatever it knows is in
// the job's store: one that dies and is started again goes on where it was, and whoever wrote the
// state last is the driver. No threads and no clock of its own; waits for nothing but the store.
#ifndef WEFT_TOOLS_DRIVER_DRIVER_H_
#define WEFT_TOOLS_DRIVER_DRIVER_H_

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/store/store.h"
#include "tools/driver/decisions.h"
#include "tools/driver/own_record.h"
#include "tools/driver/records.h"

namespace weft::driver {

struct DriverOptions {
  Policy policy;
  // Executors end their ranks when they have not reached the store for so long. A host counts as
  // lost after a quarter more, so that its ranks are gone when others are started in their place.
  absl::Duration lease = absl::Seconds(5);
};

class Driver {
 public:
  // Begins a job, or goes on with the one that the store knows, whose policy then stays.
  // kFailedPrecondition: it has another number of nodes or ranks. `store` outlives the driver.
  static absl::StatusOr<std::unique_ptr<Driver>> Open(collectives::Store* store,
                                                      const DriverOptions& options, absl::Time now);

  // Looks at all reports once, and returns what was decided. kAborted: another driver has taken
  // this one's place.
  absl::StatusOr<std::vector<Action>> Turn(absl::Time now);
  // What somebody asks for by hand. kNotFound: the job has no such host.
  absl::StatusOr<std::vector<Action>> Evict(const std::string& host, const std::string& why,
                                            absl::Time now);
  // The site has been told of that host's eviction or loss (JobState::notices).
  absl::Status SiteTold(int64_t notice, absl::Time now);
  // What the diagnosis of the whole job says; changes nothing where it was acted on before.
  absl::StatusOr<std::vector<Action>> Diagnosed(int rank, Blame blame, const std::string& text,
                                                absl::Time now);
  // Replays a step on all hosts (replay.h). kFailedPrecondition: the job cannot, with the reason.
  absl::StatusOr<std::vector<Action>> Replay(const std::string& why, absl::Time now);
  absl::StatusOr<std::vector<Action>> Stop(int exit_status, const std::string& why, absl::Time now);

  const DriverRecord& record() const { return record_; }
  const JobState& job() const { return record_.job; }
  struct Heard {
    HostReport report;
    absl::Time at;         // when its last beat was seen first
    bool changed = false;  // a beat has followed the first one that this driver saw
  };
  const std::map<std::string, Heard>& heard() const { return heard_; }
  // Whether all executors that are there know that the job is over.
  bool all_know(absl::Time now) const;

 private:
  Driver(collectives::Store* store, OwnRecord own, DriverRecord record)
      : store_(store), own_(std::move(own)), record_(std::move(record)) {}
  absl::Status Hear(absl::Time now);
  std::vector<Event> EventsOf(const std::string& host, const Heard& heard, absl::Time now) const;
  bool IsLost(const Heard& heard, absl::Time now) const;
  absl::StatusOr<std::vector<Action>> Commit(const std::vector<Event>& events, absl::Time now);
  // kFailedPrecondition: nothing is done, and record_ is what an earlier call has left.
  absl::StatusOr<std::vector<Action>> TryCommit(const std::vector<Event>& events, absl::Time now);

  collectives::Store* const store_;
  OwnRecord own_;
  DriverRecord record_;
  std::map<std::string, Heard> heard_;
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_DRIVER_H_
