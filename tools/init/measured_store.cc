#include "tools/init/measured_store.h"

#include <unistd.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/store/server/store_server.h"
#include "tools/init/weft_client.h"

namespace weft::init {
namespace {

class WeftProcess final : public StoreProcess {
 public:
  explicit WeftProcess(std::unique_ptr<collectives::StoreServer> server)
      : server_(std::move(server)) {}
  const std::string& address() const override { return server_->address(); }
  double cpu_seconds() const override { return absl::ToDoubleSeconds(server_->statistics().cpu); }
  ServerCalls calls() const override {
    collectives::StoreServerStatistics s = server_->statistics();
    return {static_cast<double>(s.reads), static_cast<double>(s.writes),
            static_cast<double>(s.waits)};
  }
  int64_t bytes_sent() const override { return server_->statistics().bytes_sent.count(); }
  int64_t waiting() const override { return server_->statistics().waiting; }

 private:
  std::unique_ptr<collectives::StoreServer> server_;
};

class OurStore final : public MeasuredStore {
 public:
  const char* name() const override { return "weft"; }
  bool has_exchanges() const override { return true; }
  absl::StatusOr<std::unique_ptr<StoreProcess>> Start(int /*ranks*/,
                                                      const net::JobSecret& secret) const override {
    collectives::StoreServerOptions server;
    server.core.secret = secret;
    server.core.description = absl::StrCat("weft-init pid ", getpid());
    WEFT_ASSIGN_OR_RETURN(auto started, collectives::StoreServer::Start(server));
    return std::make_unique<WeftProcess>(std::move(started));
  }
  std::unique_ptr<Client> MakeClient(const ClientSetup& setup) const override {
    return std::make_unique<WeftClient>(setup);
  }
};

}  // namespace

const MeasuredStore& WeftStore() {
  static const OurStore store;
  return store;
}

}  // namespace weft::init
