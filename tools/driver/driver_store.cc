#include "tools/driver/driver_store.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status.h"
#include "tools/driver/etcd.h"

namespace weft::driver {
namespace {

// One try to reach the store that etcd names; between two such tries.
constexpr absl::Duration kConnectMost = absl::Seconds(2), kRetry = absl::Milliseconds(200);
// Between two looks at which store etcd names, and for one.
constexpr absl::Duration kEtcdPeriod = absl::Seconds(1), kEtcdMost = absl::Seconds(5);

}  // namespace

absl::StatusOr<std::unique_ptr<DriverStore>> DriverStore::Connect(const ExecutorOptions& options) {
  std::unique_ptr<DriverStore> store(new DriverStore(options));
  WEFT_RETURN_IF_ERROR(store->Connect());
  return store;
}

absl::Status DriverStore::Connect() {
  WEFT_ASSIGN_OR_RETURN(const net::JobSecret secret, net::SecretFromEnvironment());
  secret_ = secret;
  secret_hex_ = net::SecretToHex(secret);
  if (secret == net::JobSecret{}) {
    return absl::InvalidArgumentError(
        "WEFT_JOB_SECRET is not set; the driver and all executors of a job need the same 64 "
        "hexadecimal digits (openssl rand -hex 32)");
  }
  collectives::StoreClientOptions client;
  address_ = options_.run.store;
  client.address = address_;
  client.secret = secret;
  client.name = absl::StrCat("weft-executor ", options_.host, " pid ", getpid());
  client.job = options_.run.job;
  client.host = options_.host;
  client.connect_timeout = options_.join_patience;
  client.reconnect = options_.run.store_patience;
  if (!options_.etcd.empty()) return ConnectByEtcd(client);
  WEFT_ASSIGN_OR_RETURN(client_, collectives::StoreClient::Connect(client));
  return absl::OkStatus();
}

// To the store that etcd names, and again to what it names then, until one answers: it may name
// one whose driver is dead, while another is being started.
absl::Status DriverStore::ConnectByEtcd(collectives::StoreClientOptions client) {
  WEFT_ASSIGN_OR_RETURN(const EtcdPlace place, ParseEtcdPlace(options_.etcd));
  const Etcd etcd(place, options_.run.job, secret_, options_.join_patience);
  const absl::Time end = clock_.Now() + options_.join_patience;
  absl::Status last = absl::UnavailableError(
      absl::StrCat("no driver has written etcd's key ", etcd.KeyOf(kEtcdAddress)));
  client.connect_timeout = kConnectMost;
  do {
    WEFT_ASSIGN_OR_RETURN(const Etcd::Held held, etcd.Read(kEtcdAddress));
    if (held.revision > 0) {
      client.address = held.value;
      auto connected = collectives::StoreClient::Connect(client);
      if (absl::IsPermissionDenied(connected.status())) return connected.status();
      last = connected.status();
      if (connected.ok()) {
        client_ = *std::move(connected);
        address_ = client.address;
        return absl::OkStatus();
      }
    }
    // Some failures come at once, a store of another version's for instance.
    absl::SleepFor(kRetry);
  } while (clock_.Now() < end);
  return last;
}

void DriverStore::WatchEtcd() {
  const absl::StatusOr<EtcdPlace> place = ParseEtcdPlace(options_.etcd);
  if (!place.ok()) return;  // there is none
  watch_ = std::jthread([this, place = *place](const std::stop_token& stop) {
    const Etcd etcd(place, options_.run.job, secret_, kEtcdMost);
    while (!stop.stop_requested() && !moved_.load()) {
      absl::SleepFor(kEtcdPeriod);
      const absl::StatusOr<Etcd::Held> now = etcd.Read(kEtcdAddress);
      if (now.ok() && now->revision > 0 && now->value != address_) moved_.store(true);
    }
  });
}

}  // namespace weft::driver
