// The driver's state in etcd, for sites that have one (weft-driver --etcd): as much as a driver
// needs that is started on another host, and where executors find it. Reports of hosts and what
// ranks tell each other stay in the job's store: an etcd keeps every revision, and bears decisions,
// not heartbeats.
//
//   PREFIX/JOB/state    the driver's record (records.h), by compare-and-put on its revision
//   PREFIX/JOB/address  "host:port" of the store of the driver that wrote the state last
//
// Each value carries a MAC under the job's secret, so that who may write to a site's etcd does not
// thereby decide what a job runs.
//
// Calls are those of etcd's API v3 as JSON over HTTP (its gRPC gateway, 3.4 and later:
// /v3/kv/range, /v3/kv/txn), without TLS and users. Members are tried one after the other, for as
// long as `patience` says. Blocks; one thread at a time.
#ifndef WEFT_TOOLS_DRIVER_ETCD_H_
#define WEFT_TOOLS_DRIVER_ETCD_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "net/transport.h"
#include "tools/driver/own_record.h"
#include "tools/observe/http.h"

namespace weft::driver {

struct EtcdPlace {
  std::vector<observe::HttpAddress> members;
  std::string prefix;  // without a '/' at its end
};
bool IsEtcd(absl::string_view text);  // begins with "etcd://"
// "etcd://10.0.0.1:2379,10.0.0.2:2379/weft"; kInvalidArgument says what is right.
absl::StatusOr<EtcdPlace> ParseEtcdPlace(absl::string_view text);

class Etcd {
 public:
  struct Held {
    std::string value;
    int64_t revision = 0;  // 0: it is not there
  };

  Etcd(EtcdPlace place, std::string job, const net::JobSecret& secret, absl::Duration patience);

  // kPermissionDenied: a value there is not of this job's secret; kUnavailable: no member answers.
  absl::StatusOr<Held> Read(const std::string& name) const;
  // Puts `value` where `name` has still that revision, and gives what it holds afterwards.
  // kUnavailable: it may have been done.
  absl::StatusOr<Held> CompareAndPut(const std::string& name, int64_t revision,
                                     absl::string_view value) const;
  // Puts `value` where `guard` has still that revision; kAborted: it has another.
  absl::Status PutWhile(const std::string& guard, int64_t revision, const std::string& name,
                        absl::string_view value) const;

  std::string KeyOf(const std::string& name) const;  // "PREFIX/JOB/NAME"

 private:
  absl::StatusOr<std::string> Call(const std::string& path, const std::string& body) const;
  std::string Seal(const std::string& name, absl::string_view value) const;
  absl::StatusOr<std::string> Open(const std::string& name, absl::string_view sealed) const;

  const EtcdPlace place_;
  const std::string job_;
  const net::JobSecret secret_;
  const absl::Duration patience_;
  mutable size_t member_ = 0;  // that answered last
};

inline constexpr char kEtcdState[] = "state";
inline constexpr char kEtcdAddress[] = "address";

// The record `state`. Of several that want it, one has it (own_record.h).
class EtcdKeeper final : public RecordKeeper {
 public:
  explicit EtcdKeeper(std::shared_ptr<const Etcd> etcd);
  const std::string& name() const override { return name_; }
  absl::StatusOr<std::string> Read() override;
  absl::StatusOr<std::string> CompareSet(absl::string_view expected,
                                         absl::string_view desired) override;
  // Tells executors where this driver's store is; kAborted: another driver has the state.
  absl::Status PutAddress(const std::string& address);

 private:
  const std::shared_ptr<const Etcd> etcd_;
  const std::string name_;
  Etcd::Held held_;  // as etcd has it, as far as it has answered
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_ETCD_H_
