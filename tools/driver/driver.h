// The driver of a job: reads what the hosts report, decides (recovery/decisions.h), and writes down
// what ought to run, which the hosts' executors then see to (host_executor.h). Whatever it knows is
// in the job's store: one that dies and is started again goes on where it was, and who wrote the
// state last is the driver. No threads and no clock of its own; waits for nothing but the store.
#ifndef WEFT_TOOLS_DRIVER_DRIVER_H_
#define WEFT_TOOLS_DRIVER_DRIVER_H_

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "collectives/store/store.h"
#include "tools/driver/etcd.h"
#include "tools/driver/own_record.h"
#include "tools/driver/records.h"
#include "tools/recovery/decisions.h"

namespace weft::driver {

struct DriverOptions {
  recovery::Policy policy;
  // Executors end their ranks when they have not reached the store for so long, unless the ranks
  // go on (fence.h). A host counts as lost after a quarter more, so that its ranks are gone when
  // others are started in their place.
  absl::Duration lease = absl::Seconds(5);
  // Names of those of the above that are given by hand ("--recover"): a job that goes on takes
  // these, and stays with what it had of the others.
  std::set<std::string> given;
  bool anew = false;  // a job that is over is begun anew, in a store that is empty
};

class Driver {
 public:
  // Begins a job, or goes on with the one that the store knows, with the options that are given.
  // kFailedPrecondition: it has another number of nodes or ranks, which it cannot change.
  // kAlreadyExists: that job is over, how and since when. `store` outlives the driver.
  //
  // With `etcd`, the state is there, and the store has a copy for the executors. Where the store
  // has none, it is a new one: executors join again, and all ranks are started anew with them.
  static absl::StatusOr<std::unique_ptr<Driver>> Open(collectives::Store* store,
                                                      const DriverOptions& options, absl::Time now,
                                                      std::shared_ptr<const Etcd> etcd = nullptr);

  // With etcd: tells executors where the store is. kAborted: another driver has the state.
  absl::Status Announce(const std::string& address);

  // Looks at all reports once, and returns what was decided. kAborted: another driver has taken
  // this one's place.
  absl::StatusOr<std::vector<recovery::Action>> Turn(absl::Time now);
  // What somebody asks for by hand. kNotFound: the job has no such host.
  absl::StatusOr<std::vector<recovery::Action>> Evict(const std::string& host,
                                                      const std::string& why, absl::Time now);
  // The site has been told of that host's eviction or loss (JobState::notices).
  absl::Status SiteTold(int64_t notice, absl::Time now);
  // What the diagnosis of the whole job says of each of these ranks; changes nothing where it was
  // acted on before.
  absl::StatusOr<std::vector<recovery::Action>> Diagnosed(const std::vector<int>& ranks,
                                                          recovery::Blame blame,
                                                          const std::string& text, absl::Time now);
  // Replays a step on all hosts (recovery/replay.h). kFailedPrecondition: the job cannot, with the
  // reason.
  absl::StatusOr<std::vector<recovery::Action>> Replay(const std::string& why, absl::Time now);
  absl::StatusOr<std::vector<recovery::Action>> Stop(int exit_status, const std::string& why,
                                                     absl::Time now);

  // Once the job is over and whoever has to know does: no driver goes on from here.
  absl::Status Close();

  const DriverRecord& record() const { return record_; }
  // What Open() has changed of a job that goes on: "--recover 50 (was 1)".
  const std::vector<std::string>& changes() const { return changes_; }
  const recovery::JobState& job() const { return record_.job; }
  struct Heard {
    HostReport report;
    absl::Time at;         // when its last beat was seen first
    bool changed = false;  // a beat has followed the first one that this driver saw
  };
  const std::map<std::string, Heard>& heard() const { return heard_; }
  // Whether all executors that are there know that the job is over.
  bool all_know(absl::Time now) const;

 private:
  Driver(collectives::Store* store, OwnRecord own) : store_(store), own_(std::move(own)) {}
  absl::Status BeginCopy(const std::string& token);
  absl::Status Hear(absl::Time now);
  std::vector<recovery::Event> EventsOf(const std::string& host, const Heard& heard,
                                        absl::Time now) const;
  bool IsLost(const Heard& heard, absl::Time now) const;
  absl::StatusOr<std::vector<recovery::Action>> Commit(std::vector<recovery::Event> events,
                                                       absl::Time now);
  // kFailedPrecondition: nothing is done, and record_ is what an earlier call has left.
  absl::StatusOr<std::vector<recovery::Action>> TryCommit(
      const std::vector<recovery::Event>& events, absl::Time now);
  absl::Status Write(DriverRecord next);

  collectives::Store* const store_;
  OwnRecord own_;
  std::optional<OwnRecord> copy_;  // of it in the store, where it is in etcd
  EtcdKeeper* etcd_ = nullptr;     // own_'s
  DriverRecord record_;
  std::vector<std::string> changes_;
  std::map<std::string, Heard> heard_;
  absl::Time looked_ = absl::InfiniteFuture();  // when this driver last looked at the reports
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_DRIVER_H_
