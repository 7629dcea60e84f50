// init_bench: what weft-init measures, on peers' stores beside ours, and what of it the kernel
// alone takes. tests/bench/init.py runs it.
#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/status.h"
#include "tests/bench/init/compare.h"
#include "tests/bench/init/floor.h"
#include "tests/bench/init/peer_store.h"
#include "tests/bench/init/report.h"
#include "tools/command_line.h"
#include "tools/init/command.h"
#include "tools/init/report.h"

namespace weft::init {
namespace {

constexpr const char* kFooter = R"(Examples:
  init_bench phases --layout tp8,pp8,dp32 --store redis      connect, register, exchange on Redis
  init_bench groups --layout tp8,pp8,dp256 --store torch     groups as torch makes them
  init_bench operations --store torch --connections 1,256 --depths 1,16
  init_bench floor --layout tp8,pp8,dp256 --relay            what of phases the kernel takes

Exit status: 0, 1 for a failed run, 2 for wrong usage.)";

struct Peer {
  std::string store = "weft";
  std::string address;
  std::string redis_server = "redis-server";
  std::string torch_python = "python3";
};

void AddStore(CLI::App& command, Peer& peer, const std::vector<std::string>& stores) {
  command
      .add_option("--store", peer.store, "Store to measure: ours, a Redis server, torch's TCPStore")
      ->check(CLI::IsMember(stores));
  command.add_option(
      "--address", peer.address,
      "Of a redis or torch server that runs already, HOST:PORT; else one is started");
  command.add_option("--redis-server", peer.redis_server, "Redis' program");
  command.add_option("--torch-python", peer.torch_python,
                     "Interpreter with PyTorch 2, for its TCPStore");
}

absl::StatusOr<std::unique_ptr<MeasuredStore>> StoreOf(const Peer& peer) {
  if (peer.store == "redis") return RedisStore({peer.address, peer.redis_server});
  if (peer.store == "torch") return TorchStore({peer.address, peer.torch_python});
  if (!peer.address.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--address ", peer.address,
                     ": our own store is started by the program; redis and torch may run before"));
  }
  return nullptr;
}

absl::StatusOr<nlohmann::ordered_json> RunGroups(Options options, int64_t most_messages) {
  WEFT_RETURN_IF_ERROR(Resolve(options));
  WEFT_ASSIGN_OR_RETURN(Comparison comparison,
                        Compare(options, most_messages, MeasureWithProgress));
  nlohmann::ordered_json json = ToJson(options, comparison.exchange);
  json["one_by_one"] = PrintComparison(options, comparison);
  return json;
}

absl::StatusOr<nlohmann::ordered_json> RunFloor(Options options) {
  WEFT_RETURN_IF_ERROR(Resolve(options));
  WEFT_ASSIGN_OR_RETURN(FloorMeasurement measurement, MeasureFloor(options));
  return PrintFloor(options, measurement);
}

int Main(int argc, char** argv) {
  Options options;
  Peer peer;
  std::string json;
  int64_t most_messages = 1'000'000;  // some ten seconds
  Run run;
  CLI::App app("Measures stores of peers beside ours, as weft-init does.", "init_bench");
  SetUpProgram(app, kFooter, options, json);

  CLI::App& phases = *app.add_subcommand("phases", "As weft-init phases, on any of the stores");
  AddLayout(phases, options);
  AddPhases(phases, options);
  AddStore(phases, peer, {"weft", "redis", "torch"});
  phases.callback([&] { run = [&] { return RunPhases(options, /*model=*/false); }; });

  CLI::App& operations = *app.add_subcommand("operations", "As weft-init operations");
  AddOperations(operations, options);
  AddStore(operations, peer, {"weft", "redis", "torch"});
  operations.callback([&] { run = [&] { return RunOperations(options); }; });

  CLI::App& groups = *app.add_subcommand(
      "groups", "Groups one by one, each with a barrier of all, as torch makes them");
  AddLayout(groups, options);
  AddPhases(groups, options);
  // Torch's waits for keys are TCPStore's and ours.
  AddStore(groups, peer, {"weft", "torch"});
  groups
      .add_option("--compare-messages", most_messages,
                  "Measure what takes up to so many messages, predict the rest")
      ->check(CLI::PositiveNumber);
  groups.callback([&] { run = [&] { return RunGroups(options, most_messages); }; });

  CLI::App& floor = *app.add_subcommand(
      "floor", "The layout's connections, messages and bytes with nothing else done");
  AddLayout(floor, options);
  AddPhases(floor, options);
  floor.callback([&] { run = [&] { return RunFloor(options); }; });

  const int status_of_usage = ReadCommandLine(app, argc, argv);
  if (status_of_usage != kGoOn) return status_of_usage;
  InitLog("init_bench", EnvironmentLogLevel(LogLevel::kWarn));
  std::unique_ptr<MeasuredStore> store;
  auto with_store = [&]() -> absl::StatusOr<nlohmann::ordered_json> {
    WEFT_ASSIGN_OR_RETURN(store, StoreOf(peer));
    if (store != nullptr) {
      options.store = store.get();
      const CLI::Option* records = app.get_subcommands()[0]->get_option_no_throw("--records");
      if (records != nullptr && records->count() == 0) options.all_records = true;
    }
    return run();
  };
  return RunAndWrite("init_bench", with_store, json, /*unavailable=*/1);
}

}  // namespace
}  // namespace weft::init

int main(int argc, char** argv) { return weft::init::Main(argc, argv); }
