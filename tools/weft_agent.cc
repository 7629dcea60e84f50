// weft-agent: serves what the processes of this host's jobs record, and the host's own counters.
#include <CLI/CLI.hpp>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/first_line.h"
#include "base/log.h"
#include "base/settings.h"
#include "base/socket_address.h"
#include "tools/command_line.h"
#include "tools/observe/agent.h"

namespace weft {
namespace {

std::atomic<bool> stop{false};
extern "C" void RequestStop(int) { stop.store(true); }

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "weft-agent: %s\n", std::string(status.message()).c_str());
  return 1;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Serves what this host's jobs record, for Prometheus (/metrics) and for weft-top, "
      "weft-trace\n"
      "and weft-diagnose on other hosts. Reads only. One a host; weft-run --agent starts it.\n"
      "Example: weft-agent --listen 127.0.0.1:9400",
      "weft-agent");
  std::string listen = "127.0.0.1:9400", token_file, otlp, period = "1s";
  observe::AgentOptions options;
  app.add_option("--listen", listen,
                 "address and port; one that others reach needs --token-file; port 0: any")
      ->capture_default_str();
  app.add_option("--token-file", token_file,
                 "file whose first line is the token that callers must bring (Authorization: "
                 "Bearer TOKEN)")
      ->check(CLI::ExistingFile);
  app.add_option("--records", options.folder,
                 "folder of the rings (default: records.folder's default)");
  app.add_option("--otlp", otlp, "HOST:PORT of an OTLP/HTTP sink that gets metrics as JSON");
  app.add_option("--period", period, "time between two readings of the rings")
      ->capture_default_str();
  const int status_of_usage = ReadCommandLine(app, argc, argv, [&]() -> absl::Status {
    auto address = observe::ParseHttpAddress(listen);
    if (!address.ok()) return address.status();
    options.server.address = *address;
    if (!otlp.empty()) {
      auto sink = observe::ParseHttpAddress(otlp);
      if (!sink.ok()) return sink.status();
      options.otlp = *sink;
    }
    if (!ParseFinite(period, &options.period) || options.period < absl::Milliseconds(10)) {
      return absl::InvalidArgumentError(
          absl::StrCat("--period ", period, " is no duration of 10ms or more"));
    }
    if (!token_file.empty()) {
      options.server.token = FirstLine(token_file);
      if (options.server.token.size() < 16) {
        return absl::InvalidArgumentError(absl::StrCat("the token in ", token_file, " has ",
                                                       options.server.token.size(),
                                                       " characters; 16 are the least"));
      }
    }
    return absl::OkStatus();
  });
  if (status_of_usage != kGoOn) return status_of_usage;
  InitLog("weft-agent", EnvironmentLogLevel(LogLevel::kWarn));
  signal(SIGINT, RequestStop);
  signal(SIGTERM, RequestStop);
  auto agent = observe::Agent::Start(options);
  if (!agent.ok()) return Fail(agent.status());
  std::printf("weft-agent: http://%s/metrics\n",
              JoinHostPort(options.server.address.host, (*agent)->port()).c_str());
  std::fflush(stdout);
  while (!stop.load()) (*agent)->Turn();
  return 0;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
