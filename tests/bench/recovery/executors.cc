// Many executors at one driver: links as weft-executor has them (tools/driver/host_link.h), without
// ranks, from one process. Prints one line of JSON for tests/bench/recovery.py:
//   join_s     until all have joined
//   stalest_s  the longest that a report went without an answer, in --seconds from then on
//   told_s     from the report of a host that leaves until all others have the driver's decision
//   failed     links that ended, of each the first reason
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/open_files.h"
#include "base/status.h"
#include "collectives/store/client/store_client.h"
#include "net/secret.h"
#include "tools/driver/host_link.h"

namespace weft::driver {
namespace {

constexpr absl::Duration kPatience = absl::Minutes(2);

struct Options {
  std::string driver, job = "weft";
  int hosts = 0;
  double seconds = 10;
};

// One executor's link; the client outlives it.
struct Executor {
  std::unique_ptr<collectives::StoreClient> client;
  std::unique_ptr<HostLink> link;
  bool knows = false;  // what the driver has decided last
};

absl::StatusOr<Executor> Join(const Options& options, const net::JobSecret& secret, int number) {
  Executor executor;
  const std::string host = absl::StrCat("host", number);
  collectives::StoreClientOptions client;
  client.address = options.driver;
  client.secret = secret;
  client.name = absl::StrCat("executor ", host);
  client.job = options.job;
  client.host = host;
  client.reconnect = kPatience;
  WEFT_ASSIGN_OR_RETURN(executor.client, collectives::StoreClient::Connect(client));
  WEFT_RETURN_IF_ERROR(executor.client->Get(kStateKey, kPatience).status());
  WEFT_ASSIGN_OR_RETURN(executor.link,
                        HostLink::Join(executor.client.get(), host, absl::Milliseconds(250)));
  HostReport report;
  report.address = "127.0.0.1";
  executor.link->Tell(report, /*urgent=*/true);
  return executor;
}

absl::Status Run(const Options& options) {
  const SystemClock clock;
  WEFT_ASSIGN_OR_RETURN(const net::JobSecret secret, net::SecretFromEnvironment());
  std::vector<Executor> executors;
  const absl::Time begin = clock.Now();
  for (int number = 0; number < options.hosts; ++number) {
    WEFT_ASSIGN_OR_RETURN(executors.emplace_back(), Join(options, secret, number));
  }
  // Until the driver has them all: the newest record that a link has names them.
  const auto pause = [] { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  size_t known = 0;
  while (known < executors.size()) {
    if (clock.Now() - begin > kPatience) {
      return absl::DeadlineExceededError(absl::StrCat("after ", absl::FormatDuration(kPatience),
                                                      " the driver has ", known, " hosts of ",
                                                      executors.size()));
    }
    if (const auto record = executors[0].link->Take()) known = record->job.hosts.size();
    pause();
  }
  nlohmann::json result = {{"hosts", options.hosts},
                           {"join_s", absl::ToDoubleSeconds(clock.Now() - begin)}};
  absl::Duration stalest;
  const absl::Time joined = clock.Now();
  while (clock.Now() - joined < absl::Seconds(options.seconds)) {
    for (Executor& executor : executors) {
      (void)executor.link->Take();
      stalest = std::max(stalest, clock.Now() - executor.link->contact());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  result["stalest_s"] = absl::ToDoubleSeconds(stalest);

  // Nothing but this changes the driver's record now. The record is not read here: hosts do that
  // each on its own, and these links share one processor.
  HostReport leaves;
  leaves.address = "127.0.0.1";
  leaves.leaves = true;
  const absl::Time left = clock.Now();
  executors.back().link->Tell(leaves, /*urgent=*/true);
  size_t knowing = 0;
  while (knowing + 1 < executors.size()) {
    if (clock.Now() - left > kPatience) {
      return absl::DeadlineExceededError(absl::StrCat("after ", absl::FormatDuration(kPatience),
                                                      " ", knowing,
                                                      " executors know that one leaves"));
    }
    for (Executor& executor : executors) {
      pollfd wait{executor.link->wake_fd(), POLLIN, 0};
      if (executor.knows || &executor == &executors.back() || poll(&wait, 1, 0) != 1) continue;
      executor.knows = true;
      ++knowing;
    }
    pause();
  }
  result["told_s"] = absl::ToDoubleSeconds(clock.Now() - left);
  int failed = 0;
  for (const Executor& executor : executors) {
    if (executor.link->status().ok()) continue;
    if (++failed == 1) result["why"] = std::string(executor.link->status().message());
  }
  result["failed"] = failed;
  std::printf("%s\n", result.dump().c_str());
  std::fflush(stdout);
  // The driver may wait for what these threads would still say.
  _exit(0);
}

int Main(int argc, char** argv) {
  CLI::App app("Joins as many hosts at a weft-driver, and measures how they fare.");
  Options options;
  app.add_option("--driver", options.driver, "host:port of its store")->required();
  app.add_option("--job", options.job, "its job's name");
  app.add_option("--hosts", options.hosts)->required()->check(CLI::Range(2, 100000));
  app.add_option("--seconds", options.seconds, "of watching them beat");
  CLI11_PARSE(app, argc, argv);
  RaiseOpenFilesLimit();
  const absl::Status status = Run(options);
  std::fprintf(stderr, "executors_bench: %s\n", std::string(status.message()).c_str());
  _exit(1);
}

}  // namespace
}  // namespace weft::driver

int main(int argc, char** argv) { return weft::driver::Main(argc, argv); }
