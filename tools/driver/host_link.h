// An executor's connection to its driver, which is the job's store: sends the host's report as a
// heartbeat, and keeps the newest of the driver's records. Two threads; thread-safe.
#ifndef WEFT_TOOLS_DRIVER_HOST_LINK_H_
#define WEFT_TOOLS_DRIVER_HOST_LINK_H_

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/file_descriptor.h"
#include "collectives/store/client/store_client.h"
#include "tools/driver/own_record.h"
#include "tools/driver/records.h"

namespace weft::driver {

class HostLink {
 public:
  // Joins the job as `host`, in an incarnation above all earlier ones. `store` outlives this.
  static absl::StatusOr<std::unique_ptr<HostLink>> Join(collectives::StoreClient* store,
                                                        const std::string& host,
                                                        absl::Duration period);
  ~HostLink();

  int64_t incarnation() const { return incarnation_; }
  // Readable when Take() has something, and when the link has failed.
  int wake_fd() const { return wake_.get(); }
  // The newest record that has come since the last call.
  std::optional<DriverRecord> Take();
  // The host's state for the reports from now on; `urgent`: is told at once, and the driver looks
  // at it at once.
  void Tell(HostReport report, bool urgent);
  // Waits until all that was told has arrived, at most `patience`; whether it has.
  bool Flush(absl::Duration patience);
  // When the last report that has arrived was sent.
  absl::Time contact() const;
  // Not OK: the store is gone for good, or another executor has joined in this one's place.
  absl::Status status() const;

 private:
  HostLink(collectives::StoreClient* store, std::string host, absl::Duration period);
  absl::Status Begin();
  void Beat();
  void Watch();
  absl::Status Send(const HostReport& report, bool urgent);
  void Fail(const absl::Status& status);
  void Wake() const;

  collectives::StoreClient* const store_;
  const std::string host_;
  const absl::Duration period_;
  OwnRecord own_;  // the report; of the thread that beats
  int64_t incarnation_ = 0;
  FileDescriptor wake_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stop_ = false, urgent_ = false;
  HostReport report_;
  int64_t told_ = 0, arrived_ = 0;     // counts of what was told
  std::optional<std::string> record_;  // read where it is taken: of many in a row only the newest
  absl::Time contact_;
  absl::Status status_;
  std::thread beats_, watches_;
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_HOST_LINK_H_
