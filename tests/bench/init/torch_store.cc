#include <stdlib.h>
#include <unistd.h>

#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "tests/bench/init/peer_store.h"
#include "tests/bench/init/torch_client.h"

namespace weft::init {
namespace {

constexpr absl::Duration kStartTimeout = absl::Seconds(60);

// Prints "port N", and serves until its standard input is closed.
constexpr const char* kTorchServer = R"(
import sys
from torch.distributed import TCPStore
store = TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False, use_libuv=True)
print("port", store.port, flush=True)
sys.stdin.read()
)";

// A file that says that names are looked up in /etc/hosts only; gone with this.
class HostsFile {
 public:
  HostsFile() {
    if (fd_ < 0) return;
    constexpr absl::string_view kText = "hosts: files\n";
    (void)!write(fd_, kText.data(), kText.size());
  }
  ~HostsFile() {
    if (fd_ < 0) return;
    close(fd_);
    unlink(name_.c_str());
  }
  std::string name() const { return fd_ < 0 ? "" : name_; }

 private:
  std::string name_ = "/tmp/weft-init-hosts-XXXXXX";
  int fd_ = mkstemp(name_.data());
};

absl::StatusOr<std::unique_ptr<StoreProcess>> StartTorch(const std::string& python) {
  HostsFile hosts;
  bool may_mount = geteuid() == 0;
  auto child = Child::Start({python, "-u", "-c", kTorchServer}, hosts.name());
  std::string more =
      "; name an interpreter that has PyTorch 2 with --torch-python (`tools/dev bench init` makes "
      "one: .deps/bench-venv/bin/python), or a server that runs with --address";
  if (absl::IsNotFound(child.status())) {
    return absl::NotFoundError(absl::StrCat("--store torch: ", child.status().message(), more));
  }
  WEFT_RETURN_IF_ERROR(child.status());
  auto line = (*child)->Await("port ", SystemClock().Now() + kStartTimeout);
  int port = 0;
  if (!line.ok() || !absl::SimpleAtoi(*line, &port)) {
    return absl::NotFoundError(absl::StrCat("--store torch: ", python, " serves no TCPStore (",
                                            line.status().message(), ")", more));
  }
  std::string note;
  if (!may_mount) {
    note =
        "TCPStore looks every client's name up, which only root can keep from a name server here";
  }
  return std::make_unique<StartedServer>(*std::move(child), port, note);
}

class TcpStore final : public MeasuredStore {
 public:
  explicit TcpStore(PeerServer server) : server_(std::move(server)) {}
  const char* name() const override { return "torch"; }
  // A set has no answer; a get is two requests.
  RequestMessages messages() const override { return {.set = 1, .get = 4}; }
  absl::StatusOr<std::unique_ptr<StoreProcess>> Start(
      int /*ranks*/, const net::JobSecret& /*secret*/) const override {
    if (!server_.address.empty()) return std::make_unique<RunningServer>(server_.address);
    return StartTorch(server_.program);
  }
  std::unique_ptr<Client> MakeClient(const ClientSetup& setup) const override {
    return std::make_unique<TorchClient>(setup);
  }

 private:
  const PeerServer server_;
};

}  // namespace

std::unique_ptr<MeasuredStore> TorchStore(const PeerServer& server) {
  return std::make_unique<TcpStore>(server);
}

}  // namespace weft::init
