#include "tools/bw/link/command_line.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"
#include "tools/command_line.h"

namespace weft::link_bw {
namespace {

constexpr const char* kFooter = R"(Examples:
  weft-bw link --ranks 2 -a                        both ends here, all sizes, over tcp
  weft-bw link                                     waits for a client here, says how to be it
  weft-bw link --listen 0.0.0.0                    the same for a client on another host
  weft-bw link HOST --key @FILE --test lat -s 8    a client; its server has the same --key
  weft-run -n 8 -- weft-bw link --pattern many-to-one -s 1M --min-gbps 90
  weft-bw link --ranks 4 --test steps -s 64M       NCCL's own pattern of slices and steps

Bandwidth is payload that has arrived, by the receiver's clock. docs/bandwidth.md explains every column.
Exit status: 0; 1 when something failed or data was wrong; 2 for wrong usage; 3 when a limit was missed.)";

// The raw words of the command line.
struct Words {
  std::string test = "bw", pattern = "one-way", transport, sizes, duration = "2s", device;
  std::string collective = "all_reduce", channel_bytes = "4M";
  std::vector<std::string> settings;
  bool all = false, both_ways = false;
  int lanes = 0, gid_index = -1, service_level = -1, traffic_class = -1, timeout = -1;
  int depth = 0;
};

// What a transport's own settings call it; null: it has no such thing.
struct Knobs {
  const char* device;
  const char* lanes;
};
Knobs KnobsOf(net::TransportKind kind) {
  switch (kind) {
    case net::TransportKind::kTcp:
      return {"tcp.interface", "tcp.sockets"};
    case net::TransportKind::kUcx:
      return {"ucx.net_devices", nullptr};
    case net::TransportKind::kMultipath:
      return {"tcp.interface", "multipath.paths"};
    case net::TransportKind::kVerbs:
      return {"verbs.devices", "verbs.queue_pairs"};
    case net::TransportKind::kShm:
      break;
  }
  return {nullptr, nullptr};
}

absl::Status SetKnobs(const Words& words, Options& options) {
  const net::TransportKind kind = options.load.transport;
  auto set = [&](const char* name, const char* option, const std::string& value) -> absl::Status {
    if (name == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(option, " means nothing to the ", ToString(kind), " transport"));
    }
    return options.settings.Set(name, value, option);
  };
  const Knobs knobs = KnobsOf(kind);
  if (!words.device.empty()) {
    const bool is_interface =
        knobs.device != nullptr && std::string(knobs.device) == "tcp.interface";
    WEFT_RETURN_IF_ERROR(
        set(knobs.device, "-d", absl::StrCat(is_interface ? "=" : "", words.device)));
  }
  if (words.lanes > 0) WEFT_RETURN_IF_ERROR(set(knobs.lanes, "-q", absl::StrCat(words.lanes)));
  struct OfVerbs {
    const char* option;
    const char* name;
    int value;
  };
  for (const OfVerbs& one : {OfVerbs{"-x", "verbs.gid_index", words.gid_index},
                             OfVerbs{"-S", "verbs.service_level", words.service_level},
                             OfVerbs{"--tclass", "verbs.traffic_class", words.traffic_class},
                             OfVerbs{"-u", "verbs.timeout", words.timeout}}) {
    if (one.value < 0) continue;
    const char* name = kind == net::TransportKind::kVerbs ? one.name : nullptr;
    WEFT_RETURN_IF_ERROR(set(name, one.option, absl::StrCat(one.value)));
  }
  return absl::OkStatus();
}

Bytes StandardSize(Test test) {
  switch (test) {
    case Test::kLatency:
    case Test::kRate:
      return Bytes(8);
    case Test::kSteps:
      return MiB(64);
    case Test::kBandwidth:
      break;
  }
  return KiB(64);
}

absl::Status SetSizes(const Words& words, Load& load) {
  if (words.all) {
    if (!words.sizes.empty()) return absl::InvalidArgumentError("-a and -s exclude each other");
    constexpr int kLastPower = 23;  // as perftest
    for (int power = 1; power <= kLastPower; ++power) {
      load.sizes.emplace_back(int64_t{1} << power);
    }
    return absl::OkStatus();
  }
  for (absl::string_view word : absl::StrSplit(words.sizes, ',', absl::SkipEmpty())) {
    Bytes size;
    WEFT_RETURN_IF_ERROR(TakeBytes("-s", word, size));
    if (size > GiB(1)) {
      return absl::InvalidArgumentError(absl::StrCat("-s ", word, ": a message has at most 1GiB"));
    }
    load.sizes.push_back(size);
  }
  if (load.sizes.empty()) load.sizes.push_back(StandardSize(load.test));
  return absl::OkStatus();
}

absl::Status SetTransport(const Words& words, Options& options) {
  std::string name = words.transport;
  if (name.empty()) name = options.settings.Text("transport");
  if (name == "auto") name = "tcp";
  WEFT_ASSIGN_OR_RETURN(options.load.transport, ParseTransport("--transport", name));
  return absl::OkStatus();
}

absl::Status Resolve(const Words& words, Options& options) {
  Load& load = options.load;
  WEFT_RETURN_IF_ERROR(options.settings.SetFromEnvironment(/*strict=*/false));
  for (const std::string& pair : words.settings) {
    WEFT_RETURN_IF_ERROR(options.settings.SetPair(pair, "--set"));
  }
  WEFT_RETURN_IF_ERROR(SetTransport(words, options));
  WEFT_RETURN_IF_ERROR(SetKnobs(words, options));
  WEFT_ASSIGN_OR_RETURN(load.test, ParseTest("--test", words.test));
  WEFT_ASSIGN_OR_RETURN(load.pattern, ParsePattern("--pattern", words.pattern));
  WEFT_ASSIGN_OR_RETURN(load.collective, ParseCollective("--collective", words.collective));
  if (words.both_ways) {
    if (words.pattern != "one-way" && words.pattern != "both-ways") {
      return absl::InvalidArgumentError(
          absl::StrCat("-b and --pattern ", words.pattern, " exclude each other"));
    }
    load.pattern = Pattern::kBothWays;
  }
  WEFT_RETURN_IF_ERROR(SetSizes(words, load));
  WEFT_RETURN_IF_ERROR(TakeBytes("--buffsize", words.channel_bytes, load.channel_bytes));
  if (load.channel_bytes < KiB(8) || load.channel_bytes > MiB(64)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--buffsize ", words.channel_bytes, " is not from 8KiB to 64MiB"));
  }
  // perftest counts in whole seconds, without a unit.
  std::string duration = words.duration;
  if (duration.find_first_not_of("0123456789.") == std::string::npos) duration += 's';
  if (!absl::ParseDuration(duration, &load.duration) || load.duration < absl::Milliseconds(10) ||
      load.duration > kDurationMost) {
    return absl::InvalidArgumentError(
        absl::StrCat("-D '", words.duration, "' is no time from 10ms to ",
                     absl::FormatDuration(kDurationMost), ", as in 5 or 500ms"));
  }
  load.depth = words.depth > 0 ? words.depth : (load.test == Test::kRate ? 128 : 16);
  load.post_list = std::min(load.post_list, load.depth);
  const bool streams = load.test == Test::kBandwidth || load.test == Test::kRate;
  if (load.check && !streams) {
    return absl::InvalidArgumentError("--data_validation is for --test bw and rate");
  }
  if (!options.host.empty() && options.listen != Options().listen) {
    return absl::InvalidArgumentError("--listen is a server's; HOST makes this a client");
  }
  if (options.max_usec > 0 && load.test != Test::kLatency) {
    return absl::InvalidArgumentError("--max-usec is for --test lat");
  }
  if (load.one_buffer && !streams) {
    return absl::InvalidArgumentError("--one-buffer is for --test bw and rate");
  }
  if (load.one_buffer && load.check) {
    return absl::InvalidArgumentError(
        "--one-buffer and --data_validation exclude each other: messages overwrite one another");
  }
  return absl::OkStatus();
}

void DeclareLoad(CLI::App& app, Words& words, Options& options) {
  Load& load = options.load;
  app.add_option("--test", words.test,
                 "bw: bandwidth, lat: half of a round trip, rate: small messages a second, steps: "
                 "NCCL's pattern of slices");
  app.add_option("--pattern", words.pattern,
                 "one-way (the first half of the ranks to the second), both-ways, many-to-one, "
                 "one-to-many (--root), all-pairs");
  app.add_flag("-b,--bidirectional", words.both_ways, "As --pattern both-ways");
  app.add_flag("--in-turn", load.in_turn, "One flow after the other, and not all at once");
  app.add_option("--root", load.root, "The one rank of many-to-one, one-to-many and broadcast")
      ->check(CLI::NonNegativeNumber);
  app.add_option("-s,--size", words.sizes,
                 "Bytes of a message, or a list: 4K,64K,1M; empty: 64K, lat and rate 8, steps 64M");
  app.add_flag("-a,--all", words.all, "Sizes from 2 to 2^23");
  app.add_option("-n,--iters", load.iterations,
                 "Messages of a flow (lat: round trips; steps: operations), and a tenth before; 0: "
                 "as many as -D allows")
      ->check(CLI::NonNegativeNumber);
  app.add_option("-D,--duration", words.duration,
                 "How long each size is measured, after a fifth of it as warm-up: 5 (seconds), "
                 "500ms");
  app.add_option("-t,--tx-depth,-O", words.depth,
                 "Messages of a flow under way at once; 0: 16, rate 128; they share 64 MiB at most")
      ->check(CLI::Range(0, 4096));
  app.add_option("-l,--post_list", load.post_list, "Sends that are posted together")
      ->check(CLI::Range(1, 4096));
  app.add_flag("--one-buffer", load.one_buffer,
               "All messages under way use the same memory, as in perftest and ucx_perftest");
  app.add_flag("--data_validation,-V", load.check, "Check every byte that arrives (slower)");
  app.add_flag("-e,--events", load.events,
               "Sleep while there is nothing to do, instead of polling");
  app.add_option("--collective", words.collective,
                 "With --test steps: all_reduce, all_gather, reduce_scatter, broadcast, send_recv");
  app.add_option("--channels", load.channels, "With --test steps: number of NCCL's channels")
      ->check(CLI::Range(1, 64));
  app.add_option("--buffsize", words.channel_bytes,
                 "With --test steps: NCCL_BUFFSIZE, bytes of one channel");
}

void DeclareRest(CLI::App& app, Words& words, Options& options) {
  app.add_option("host", options.host, "The server's name or address: be its client");
  app.add_option("-p,--port", options.port, "Where the server listens for its client")
      ->check(CLI::Range(1, 65535));
  app.add_option("--listen", options.listen,
                 "The server's address for its client; 0.0.0.0: every address of this host");
  app.add_option("--key", options.key,
                 "@FILE: what client and server both know, 64 hexadecimal digits or a long "
                 "passphrase; empty: WEFT_JOB_SECRET, or the server draws one and prints the "
                 "client's command");
  app.add_option("--ranks", options.ranks, "Start this many local ranks with weft-run")
      ->check(CLI::Range(0, 1024));
  app.add_option("--transport", words.transport,
                 "tcp, shm, ucx, multipath or verbs; empty: as set; auto: tcp");
  app.add_option("-d,--device", words.device,
                 "Network interface (tcp, multipath) or device (verbs: mlx5_0:1; ucx)");
  app.add_option("-q,--qps", words.lanes, "Queue pairs, sockets or paths of a link; 0: as set")
      ->check(CLI::Range(0, 128));
  app.add_option("-x,--gid-index", words.gid_index, "verbs: index of the GID; -1: as set")
      ->check(CLI::Range(-1, 255));
  app.add_option("-S,--sl", words.service_level, "verbs: service level; -1: as set")
      ->check(CLI::Range(-1, 15));
  app.add_option("--tclass", words.traffic_class, "verbs: traffic class; -1: as set")
      ->check(CLI::Range(-1, 255));
  app.add_option("-u,--qp-timeout", words.timeout, "verbs: 4.096 us times 2 to this; -1: as set")
      ->check(CLI::Range(-1, 31));
  app.add_option("--set", words.settings, "A setting, name=value; repeatable (see weft-settings)");
  app.add_flag("--report_gbits", options.gbits, "Bandwidth in Gb/s and not in GB/s");
  app.add_option("-R,--percentile", options.load.percentile,
                 "Percentile of the latency that --max-usec bounds")
      ->check(RealRange(0, 100));
  app.add_flag("--lanes", options.lanes,
               "Rows of sockets, queue pairs or paths after every size, and not the last alone");
  app.add_option("--min-gbps", options.min_gbps,
                 "Exit with 3 where the best size has less, in Gb/s over all flows; steps: of bus "
                 "bandwidth; --in-turn: the slowest flow")
      ->check(RealRange(0, 1e9));
  app.add_option("--max-usec", options.max_usec,
                 "Exit with 3 where the latency (-R) of the best size is above, in microseconds")
      ->check(RealRange(0, 1e12));
  app.add_option("--json", options.json, "Write everything to this file; -: print it alone");
}

}  // namespace

Parsed ParseCommandLine(int argc, char** argv) {
  Parsed parsed;
  Words words;
  CLI::App app("weft-bw link: bandwidth, latency and message rate of one transport",
               "weft-bw link");
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  DeclareLoad(app, words, parsed.options);
  DeclareRest(app, words, parsed.options);
  parsed.exit_status =
      ReadCommandLine(app, argc, argv, [&] { return Resolve(words, parsed.options); });
  return parsed;
}

}  // namespace weft::link_bw
