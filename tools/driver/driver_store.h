// An executor's way to its driver's store: finds it, by an address or by etcd, connects to it, and
// looks whether etcd names another one later.
//
// One thread makes and uses a DriverStore; any thread may call moved(). WatchEtcd() starts one more
// thread.
#ifndef WEFT_TOOLS_DRIVER_DRIVER_STORE_H_
#define WEFT_TOOLS_DRIVER_DRIVER_STORE_H_

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "collectives/store/client/store_client.h"
#include "net/secret.h"
#include "tools/driver/host_executor.h"

namespace weft::driver {

class DriverStore {
 public:
  // Waits for the store for options.join_patience at most. kInvalidArgument: there is no secret of
  // the job; kPermissionDenied: the store has another one. `options` outlives the result.
  static absl::StatusOr<std::unique_ptr<DriverStore>> Connect(const ExecutorOptions& options);

  collectives::StoreClient* client() { return client_.get(); }
  const std::string& address() const { return address_; }
  const net::JobSecret& secret() const { return secret_; }
  const std::string& secret_hex() const { return secret_hex_; }

  // Looks every second, where there is an etcd, whether it names another store than this one. Once
  // the process's signals are taken: it starts a thread, which the destructor waits for (seconds).
  void WatchEtcd();
  // Whether etcd has named another one; stays so.
  bool moved() const { return moved_.load(); }

 private:
  explicit DriverStore(const ExecutorOptions& options) : options_(options) {}
  absl::Status Connect();
  absl::Status ConnectByEtcd(collectives::StoreClientOptions client);

  const ExecutorOptions& options_;
  SystemClock clock_;
  net::JobSecret secret_{};
  std::string secret_hex_;
  std::string address_;
  std::unique_ptr<collectives::StoreClient> client_;
  std::atomic<bool> moved_{false};
  std::jthread watch_;  // of etcd
};

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_DRIVER_STORE_H_
