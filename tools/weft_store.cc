// weft-store: a rendezvous store on its own, for jobs whose store must outlive a launcher, and for
// tests.
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/open_files.h"
#include "base/status.h"
#include "base/units.h"
#include "collectives/store/server/store_server.h"
#include "net/secret.h"
#include "tools/command_line.h"

namespace weft {
namespace {

// How long the store knows which requests of a client that is away it has answered: more than the
// time for which a weft-driver, its executors and their ranks try to reach it.
constexpr absl::Duration kSessionLinger = absl::Minutes(5);

nlohmann::ordered_json StatusOf(const collectives::StoreServer& server) {
  collectives::StoreServerStatistics s = server.statistics();
  return {{"address", server.address()},
          {"pid", getpid()},
          {"connections", s.connections},
          {"keys", s.keys},
          {"waiting", s.waiting},
          {"memory_bytes", s.memory.count()},
          {"accepted", s.accepted},
          {"refused", s.refused},
          {"last_refusal", s.last_refusal},
          {"requests", s.requests},
          {"cpu_seconds", absl::ToDoubleSeconds(s.cpu)}};
}

absl::Status Serve(const std::string& listen, const std::string& memory,
                   const std::string& state_dir, const std::string& silence, bool open, bool json) {
  collectives::StoreServerOptions options;
  options.listen = listen;
  options.state_dir = state_dir;
  options.open_to_unauthenticated = open;
  if (!ParseFinite(silence, &options.silence) || options.silence < absl::Seconds(3)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--silence ", silence, " is no duration of 3 s or more; right are 3s, 1m"));
  }
  options.core.description = absl::StrCat("weft-store pid ", getpid());
  options.core.session_linger = kSessionLinger;
  WEFT_ASSIGN_OR_RETURN(options.core.memory_limit, ParseBytes(memory));
  if (options.core.memory_limit == Bytes(0)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory ", memory, " has room for no key; right are 512MiB, 4GiB"));
  }
  WEFT_ASSIGN_OR_RETURN(options.core.secret, net::SecretFromEnvironment());
  // Before the server's thread, so that the signals come to sigwait() below.
  sigset_t signals;
  sigemptyset(&signals);
  for (int signal : {SIGINT, SIGTERM, SIGHUP, SIGUSR1}) sigaddset(&signals, signal);
  sigprocmask(SIG_BLOCK, &signals, nullptr);
  WEFT_ASSIGN_OR_RETURN(auto server, collectives::StoreServer::Start(options));
  auto print = [&] {
    std::puts(json ? JsonText(StatusOf(*server)).c_str()
                   : absl::StrCat("weft-store: serving at ", server->address()).c_str());
    std::fflush(stdout);
  };
  print();
  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGUSR1) print();
  if (json) print();
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Serves a rendezvous store until SIGINT, SIGTERM or SIGHUP. Prints its address once it "
      "serves.\nWEFT_JOB_SECRET (64 hexadecimal digits): clients must have the same; without it, "
      "loopback\naddresses only. Example: WEFT_JOB_SECRET=$(openssl rand -hex 32) weft-store "
      "--listen :29501",
      "weft-store");
  std::string listen = "127.0.0.1:0";
  std::string memory = "4GiB";
  std::string state_dir;
  std::string silence = "20s";
  bool open = false;
  bool json = false;
  app.add_option("--listen", listen, "host:port; port 0: a free one; \":29501\": every address")
      ->capture_default_str();
  app.add_option("--memory", memory, "bound on what keys and values take: 512MiB, 4GiB")
      ->capture_default_str();
  app.add_option("--state-dir", state_dir,
                 "folder for a journal: killed and started again there, at the same --listen, the "
                 "store goes on, and clients that waited do not notice; empty: none");
  app.add_option("--silence", silence,
                 "a client's host from which nothing comes for so long counts as gone: 3s, 20s, 1m")
      ->capture_default_str();
  app.add_flag("--open", open,
               "serve unauthenticated clients: any address, although there is no secret");
  app.add_flag("--json", json,
               "print status objects: when it serves, for each SIGUSR1, and at the end");
  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  RaiseOpenFilesLimit();
  signal(SIGXFSZ, SIG_IGN);  // a journal at the limit of file sizes is one on a full disk
  signal(SIGPIPE, SIG_IGN);  // the job goes on where nobody reads what is said any more
  InitLog("weft-store", EnvironmentLogLevel(LogLevel::kWarn));
  absl::Status status = Serve(listen, memory, state_dir, silence, open, json);
  if (status.ok()) return 0;
  std::fprintf(stderr, "weft-store: %s\n", std::string(status.message()).c_str());
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
