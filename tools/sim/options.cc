#include "tools/sim/options.h"

#include <CLI/CLI.hpp>
#include <cstdio>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "base/status.h"
#include "collectives/simulate/workloads.h"
#include "net/multipath/simulated.h"
#include "tools/command_line.h"
#include "topology/fabric/generator.h"
#include "topology/sim/switch_hashes.h"
#include "topology/sim/workloads/registry.h"

namespace weft::sim {
namespace {

using topology::LoadBalance;
using topology::PacketOptions;
using topology::TransportKind;

constexpr const char* kFooter = R"(Examples:
  weft-sim --fabric leaf-spine:leaves=8,hosts_per_leaf=16,spines=16 --workload permutation:bytes=2MB
  weft-sim --fabric rail.toml --workload all_reduce:algorithm=tree,bytes=16MiB --level flow
  weft-sim --fabric rail.toml --traffic perm.cm --transport uec --json result.json
  weft-sim --fabric ft.topo --traffic incast.cm --pfc on --pfc-xoff 200KB --svg loads.svg

Transports, and what "auto" means with each:
  roce       go-back-N, line rate, hashed, PFC       roce-sr   selective repeat, hashed, PFC
  spray      selective repeat, fixed window, packets sprayed, trimming
  uec        the same with NSCC congestion control and ECN
  credit     receiver-driven credits, packets sprayed, trimming
  multipath  Weft's own protocol, with --cc and --policy; paths are hashed, ECN

--cc NAME[:key=value,...] is a controller of docs/congestion-control.md: fixed, dcqcn, swift, mswift,
hybrid, nscc, credit, hpcc; with other transports than multipath it takes the place of theirs.
--policy is single, round-robin, random, two-choices, reps, penalty, plb or planned.

fct_us counts from a transfer's start until its source knows that all has arrived, as completion
queues and other simulators do; delivery_us until the last byte has arrived, which is what dependent
operations wait for (at flow level both are this). Files and options: docs/simulator.md.
Exit status: 0 when every operation ended, 1 when not or when something failed, 2 for wrong usage.)";

constexpr double kAutomatic = -1;  // of --ecn-probability

// The raw words of the command line.
struct Words {
  std::string level = "packet", load_balance = "auto";
  std::string payload = "4096", header = "64", ack_size = "64", window = "0";
  std::string timeout = "0s", nack_interval = "0s", limit = "20s";
  std::string ecn = "auto", ecn_min = "auto", ecn_max = "auto", ecn_reference = "auto";
  double ecn_probability = kAutomatic;
  std::string pfc = "auto", pfc_xoff = "0", pfc_headroom = "0", pfc_resume = "3072";
  std::string pfc_reaction = "0s";
  std::string buffer = "0", port_buffer = "0", trimming = "auto";
  double loss = 0, corruption = 0, duplication = 0, reordering = 0;
  std::string reordering_delay = "10us";
  std::string cc, policy = "reps", piece = "0";
  int paths = 64, hops = 3;
  bool list_workloads = false;
};

void Declare(CLI::App& app, Words& words, Options& options) {
  PacketOptions& packet = options.packet;
  app.footer(kFooter);
  app.option_defaults()->always_capture_default();
  app.add_option("--fabric", options.fabric,
                 "A fabric file (TOML, htsim topology, Slurm, LLDP, ibnetdiscover), or a generator "
                 "as leaf-spine:leaves=8,...")
      ->required();
  auto* traffic = app.add_option("--traffic", options.traffic, "An htsim traffic list");
  app.add_option("--workload", options.workload,
                 "NAME[:key=value,...], several joined with '+'; see --list-workloads")
      ->excludes(traffic);
  app.add_flag("--list-workloads", words.list_workloads,
               "Print every workload with its keys, and end");
  app.add_option("--seed", packet.seed, "Seed of all random draws");
  app.add_option("--level", words.level, "Every packet, or rates alone")
      ->check(CLI::IsMember({"packet", "flow"}));
  app.add_option("--transport", options.transport, "See below")
      ->check(CLI::IsMember({"roce", "roce-sr", "spray", "uec", "credit", "multipath"}));
  app.add_option("--cc", words.cc,
                 "Congestion controller; empty: the transport's own, with multipath nscc");
  app.add_option("--policy", words.policy, "multipath: which path a packet takes");
  app.add_option("--paths", words.paths, "multipath: paths of a connection")
      ->check(CLI::Range(1, 4096));
  app.add_option("--piece", words.piece, "multipath: bytes on one path before another is chosen");
  app.add_option("--hops", words.hops, "--cc: switches on the way, for targets that grow with them")
      ->check(CLI::Range(1, 16));
  app.add_option("--load-balance", words.load_balance,
                 "Path by flow (ecmp), by packet at random (spray) or to the emptiest queue")
      ->check(CLI::IsMember({"auto", "ecmp", "spray", "adaptive"}));
  app.add_option("--hash", options.hash,
                 "Of every switch, with ecmp: " + topology::SwitchHashes::Names() +
                     "; none: random, from the seed");
  app.add_option("--payload", words.payload, "Bytes of a full packet");
  app.add_option("--header", words.header,
                 "Bytes of headers on the wire for each packet, in addition to the payload");
  app.add_option("--ack-size", words.ack_size, "Bytes of an acknowledgement on the wire");
  app.add_option("--ack-every", packet.ack_every, "roce: packets an acknowledgement");
  app.add_option("--window", words.window,
                 "Bytes a transfer may have in flight; 0: no limit with roce, else 1.5 times what "
                 "its path holds; not of multipath");
  app.add_option("--timeout", words.timeout,
                 "Retransmission timeout; 0s: 1ms with roce, else 200us, and 3 round trips at "
                 "least; not of multipath");
  app.add_option("--nack-interval", words.nack_interval,
                 "roce: between NACKs for one packet; 0s: two round trips");
  app.add_option("--reordering", packet.reordering,
                 "Packets that may overtake before one counts as lost; 0: 3 with ecmp, else any; "
                 "not of roce and multipath");
  app.add_option("--limit", words.limit, "Simulated time after which all is left as it is");
  app.add_option(
      "--buffer", words.buffer,
      "Memory of a switch; 0: as in the fabric, and 64MB with PFC if a switch states none");
  app.add_option("--port-buffer", words.port_buffer,
                 "Data in an egress queue at most; 0: as in the fabric");
  app.add_option("--trimming", words.trimming, "Full queues cut packets to headers")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_option("--ecn", words.ecn, "Mark congestion")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_option("--ecn-min", words.ecn_min,
                 "Queue above which some are marked; auto: 100KB per "
                 "25Gbps of the port, with uec 0.2 of what a round trip holds");
  app.add_option("--ecn-max", words.ecn_max,
                 "Queue above which all are; auto: 400KB, with uec 0.8");
  app.add_option("--ecn-probability", words.ecn_probability,
                 "Share marked just below --ecn-max; -1: 0.2, with uec 1");
  app.add_option("--ecn-reference", words.ecn_reference,
                 "Speed of the port for which --ecn-min and --ecn-max are meant; others in "
                 "proportion; 0: all the same; auto: 25Gbps if they are auto");
  app.add_option("--pfc", words.pfc, "Pause neighbours instead of dropping")
      ->check(CLI::IsMember({"auto", "on", "off"}));
  app.add_option("--pfc-xoff", words.pfc_xoff,
                 "Threshold of an ingress; 0: a share of the free memory of the switch");
  app.add_option("--pfc-shift", packet.pfc.dynamic_shift,
                 "The share of free memory for --pfc-xoff 0 is 1 / 2^this");
  app.add_option("--pfc-resume", words.pfc_resume, "Resume this much below the threshold");
  app.add_option("--pfc-headroom", words.pfc_headroom,
                 "Above the threshold, of each ingress; 0: what loses nothing");
  app.add_option("--pfc-reaction", words.pfc_reaction,
                 "Time that a neighbour takes to obey a pause");
  app.add_option("--loss", words.loss, "Share of packets that each link loses");
  app.add_option("--corruption", words.corruption, "Share of packets that each link damages");
  app.add_option("--duplication", words.duplication, "Share of packets that arrive twice");
  auto* late =
      app.add_option("--reordering-share", words.reordering, "Share of packets that arrive late");
  app.add_option("--reordering-delay", words.reordering_delay,
                 "How late those packets arrive, at most")
      ->needs(late);
  app.add_option("--faults", options.faults, "File of links that fail, recover or slow down");
  app.add_option("--json", options.json, "Write the result into this file ('-': standard output)");
  app.add_option("--timeline", options.timeline, "Write a trace for Perfetto into this file");
  app.add_option("--svg", options.svg, "Draw the fabric with the load of its links into this file");
  app.add_flag("--quiet", options.quiet, "No progress");
}

absl::Status ToDuration(const std::string& text, absl::string_view option, absl::Duration& to) {
  if (ParseFinite(text, &to)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(option, " '", text, "' is no time, as in 200us or 1.5ms"));
}

bool IsOn(const std::string& word, bool automatic) {
  return word == "auto" ? automatic : word == "on";
}

// What "auto" means with a transport.
struct Manner {
  TransportKind kind;
  const char* controller;  // of net/cc, without --cc; empty: the fixed window
  LoadBalance balance;
  bool pfc, ecn, trimming;
};

Manner MannerOf(const std::string& transport) {
  using enum TransportKind;
  using enum LoadBalance;
  if (transport == "roce-sr") return {kSelective, "", kEcmp, true, false, false};
  if (transport == "spray") return {kSelective, "", kSpray, false, false, true};
  if (transport == "uec") return {kSelective, "nscc", kSpray, false, true, true};
  if (transport == "credit") return {kCredit, "", kSpray, false, false, true};
  if (transport == "multipath") return {kSelective, "nscc", kEcmp, false, true, false};
  return {kGoBackN, "", kEcmp, true, false, false};
}

// --cc, --policy and what belongs to them.
absl::Status ResolveProtocol(const Words& words, Options& options) {
  bool is_multipath = options.transport == "multipath";
  const std::string name = words.cc.empty() ? MannerOf(options.transport).controller : words.cc;
  if (name.empty()) return absl::OkStatus();
  WEFT_ASSIGN_OR_RETURN(net::ControllerSpec spec, net::ParseController(name));
  if (spec.kind == net::ControllerKind::kHpcc) {
    return absl::InvalidArgumentError("--cc hpcc: the simulated switches give no telemetry");
  }
  if (!is_multipath) {
    options.packet.make_congestion = net::multipath::SimulatedControllers(spec, words.hops);
    return absl::OkStatus();
  }
  net::multipath::SimulatedOptions simulated;
  simulated.controller = spec;
  WEFT_ASSIGN_OR_RETURN(simulated.policy, net::ParsePolicy(words.policy));
  simulated.paths = words.paths;
  simulated.hops = words.hops;
  WEFT_RETURN_IF_ERROR(TakeBytes("--piece", words.piece, simulated.piece));
  options.packet.make_transports = net::multipath::SimulatedTransports(simulated);
  return absl::OkStatus();
}

absl::Status ResolveEcn(const Words& words, const std::string& transport, PacketOptions& packet) {
  topology::EcnOptions& ecn = packet.ecn;
  bool is_given = words.ecn_min != "auto" || words.ecn_max != "auto";
  if (words.ecn_min != "auto") WEFT_RETURN_IF_ERROR(TakeBytes("--ecn-min", words.ecn_min, ecn.min));
  if (words.ecn_max != "auto") WEFT_RETURN_IF_ERROR(TakeBytes("--ecn-max", words.ecn_max, ecn.max));
  if (words.ecn_probability != kAutomatic) ecn.probability_max = words.ecn_probability;
  if (words.ecn_reference == "auto") {
    if (is_given) ecn.reference = Bandwidth();
  } else if (words.ecn_reference == "0") {
    ecn.reference = Bandwidth();
  } else {
    const absl::StatusOr<Bandwidth> reference = ParseBandwidth(words.ecn_reference);
    if (!reference.ok()) return Annotate(reference.status(), "--ecn-reference");
    ecn.reference = *reference;
  }
  bool is_nscc = words.cc.empty() || words.cc.substr(0, 4) == "nscc";
  bool is_uec = transport == "uec" || (transport == "multipath" && is_nscc);
  if (is_given || !is_uec) return absl::OkStatus();
  if (words.ecn_reference != "auto") {
    return absl::InvalidArgumentError(
        absl::StrCat("--ecn-reference changes nothing with --transport ", transport,
                     ", which marks by round trips, unless --ecn-min or --ecn-max is given"));
  }
  ecn.min_round_trips = 0.2;
  ecn.max_round_trips = 0.8;
  if (words.ecn_probability == kAutomatic) ecn.probability_max = 1;
  return absl::OkStatus();
}

absl::Status ResolveMemory(const Words& words, PacketOptions& packet) {
  WEFT_RETURN_IF_ERROR(TakeBytes("--buffer", words.buffer, packet.switch_buffer));
  WEFT_RETURN_IF_ERROR(TakeBytes("--port-buffer", words.port_buffer, packet.port_buffer));
  topology::PfcOptions& pfc = packet.pfc;
  WEFT_RETURN_IF_ERROR(TakeBytes("--pfc-xoff", words.pfc_xoff, pfc.xoff));
  WEFT_RETURN_IF_ERROR(TakeBytes("--pfc-headroom", words.pfc_headroom, pfc.headroom));
  WEFT_RETURN_IF_ERROR(TakeBytes("--pfc-resume", words.pfc_resume, pfc.resume_offset));
  return ToDuration(words.pfc_reaction, "--pfc-reaction", pfc.reaction);
}

// Options of packets that some transports alone have.
absl::Status CheckTransport(const CLI::App& app, const std::string& transport) {
  struct Row {
    const char* option;
    std::vector<absl::string_view> transports;
  };
  const std::vector<absl::string_view> go_back_n = {"roce"}, multipath = {"multipath"};
  const std::vector<absl::string_view> selective = {"roce-sr", "spray", "uec", "credit"};
  const std::vector<absl::string_view> own = {"roce", "roce-sr", "spray", "uec", "credit"};
  const Row rows[] = {{"--ack-every", go_back_n},  {"--nack-interval", go_back_n},
                      {"--reordering", selective}, {"--window", own},
                      {"--timeout", own},          {"--policy", multipath},
                      {"--paths", multipath},      {"--piece", multipath}};
  for (const Row& row : rows) {
    if (app.count(row.option) == 0 || absl::c_linear_search(row.transports, transport)) continue;
    return absl::InvalidArgumentError(absl::StrCat(row.option, " belongs to --transport ",
                                                   absl::StrJoin(row.transports, ", "), "; with ",
                                                   transport, " it changes nothing"));
  }
  return absl::OkStatus();
}

// Options of what is off.
absl::Status CheckOn(const CLI::App& app, const Words& words, const std::string& transport) {
  const Manner manner = MannerOf(transport);
  struct Row {
    const char* feature;
    bool is_on;
    std::vector<const char*> options;
  };
  const Row rows[] = {
      {"--ecn",
       IsOn(words.ecn, manner.ecn),
       {"--ecn-min", "--ecn-max", "--ecn-probability", "--ecn-reference"}},
      {"--pfc",
       IsOn(words.pfc, manner.pfc),
       {"--pfc-xoff", "--pfc-shift", "--pfc-resume", "--pfc-headroom", "--pfc-reaction"}}};
  for (const Row& row : rows) {
    for (const char* option : row.options) {
      if (row.is_on || app.count(option) == 0) continue;
      const bool is_given = app.count(row.feature) > 0;
      return absl::InvalidArgumentError(absl::StrCat(
          option, " changes nothing without ", row.feature, " on",
          is_given ? "" : absl::StrCat("; with --transport ", transport, " it is off")));
    }
  }
  if (app.count("--hops") > 0 && words.cc.empty() && manner.controller[0] == '\0') {
    return absl::InvalidArgumentError(absl::StrCat(
        "--hops is for congestion controllers: it needs --cc, or --transport uec or multipath; ",
        transport, " has none"));
  }
  return absl::OkStatus();
}

// Options that would change nothing are refused: a result would be taken for one with them.
absl::Status CheckUsed(const CLI::App& app, const Words& words, const std::string& transport) {
  // clang-format off
  constexpr const char* kOfPackets[] = {
      "--cc", "--policy", "--paths", "--piece", "--hops", "--ack-every", "--window", "--timeout",
      "--nack-interval", "--reordering", "--buffer", "--port-buffer", "--trimming", "--ecn",
      "--ecn-min", "--ecn-max", "--ecn-probability", "--ecn-reference", "--pfc", "--pfc-xoff",
      "--pfc-shift", "--pfc-resume", "--pfc-headroom", "--pfc-reaction", "--loss", "--corruption",
      "--duplication", "--reordering-share", "--reordering-delay"};
  // clang-format on
  for (const char* option : kOfPackets) {
    if (words.level == "packet" || app.count(option) == 0) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(option, " is about packets and queues, which --level ", words.level,
                     " does not have: leave it out, or simulate with --level packet"));
  }
  WEFT_RETURN_IF_ERROR(CheckTransport(app, transport));
  return CheckOn(app, words, transport);
}

absl::Status Resolve(const CLI::App& app, const Words& words, Options& options) {
  WEFT_RETURN_IF_ERROR(CheckUsed(app, words, options.transport));
  if (options.traffic.empty() == options.workload.empty()) {
    return absl::InvalidArgumentError("give either --traffic or --workload");
  }
  PacketOptions& packet = options.packet;
  options.level = words.level == "flow" ? Level::kFlow : Level::kPacket;
  Manner manner = MannerOf(options.transport);
  packet.transport = manner.kind;
  packet.load_balance = words.load_balance == "auto"    ? manner.balance
                        : words.load_balance == "spray" ? LoadBalance::kSpray
                        : words.load_balance == "ecmp"  ? LoadBalance::kEcmp
                                                        : LoadBalance::kAdaptive;
  if (!options.hash.empty() && packet.load_balance != LoadBalance::kEcmp) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--hash ", options.hash, " changes nothing where paths are chosen for each packet, as ",
        words.load_balance == "auto" ? absl::StrCat("--transport ", options.transport)
                                     : absl::StrCat("--load-balance ", words.load_balance),
        " has it: add --load-balance ecmp"));
  }
  packet.pfc.enabled = IsOn(words.pfc, manner.pfc);
  packet.ecn.enabled = IsOn(words.ecn, manner.ecn);
  packet.trimming = IsOn(words.trimming, manner.trimming);
  WEFT_RETURN_IF_ERROR(TakeBytes("--payload", words.payload, packet.payload));
  WEFT_RETURN_IF_ERROR(TakeBytes("--header", words.header, packet.header));
  WEFT_RETURN_IF_ERROR(TakeBytes("--ack-size", words.ack_size, packet.ack_size));
  WEFT_RETURN_IF_ERROR(TakeBytes("--window", words.window, packet.window));
  WEFT_RETURN_IF_ERROR(ToDuration(words.timeout, "--timeout", packet.timeout));
  WEFT_RETURN_IF_ERROR(ToDuration(words.nack_interval, "--nack-interval", packet.nack_interval));
  WEFT_RETURN_IF_ERROR(ToDuration(words.limit, "--limit", packet.limit));
  WEFT_RETURN_IF_ERROR(ResolveMemory(words, packet));
  WEFT_RETURN_IF_ERROR(ResolveProtocol(words, options));
  WEFT_RETURN_IF_ERROR(ResolveEcn(words, options.transport, packet));
  for (const auto& [name, share] :
       {std::pair{"--loss", words.loss}, std::pair{"--corruption", words.corruption},
        std::pair{"--duplication", words.duplication},
        std::pair{"--reordering-share", words.reordering}}) {
    if (share >= 0 && share <= 1) continue;
    return absl::InvalidArgumentError(absl::StrCat(name, " ", share, " is no share from 0 to 1"));
  }
  topology::LinkNoise noise;
  noise.loss = words.loss;
  noise.corruption = words.corruption;
  noise.duplication = words.duplication;
  noise.reordering = words.reordering;
  WEFT_RETURN_IF_ERROR(
      ToDuration(words.reordering_delay, "--reordering-delay", noise.reordering_delay));
  if (words.loss + words.corruption + words.duplication + words.reordering > 0) {
    packet.noise.push_back(noise);
  }
  return absl::OkStatus();
}

}  // namespace

Parsed ParseCommandLine(int argc, char** argv) {
  Parsed parsed;
  Words words;
  CLI::App app("weft-sim: what a network does with a workload, packet by packet or by flows",
               "weft-sim");
  Declare(app, words, parsed.options);
  for (int i = 1; i < argc; ++i) {
    if (absl::string_view(argv[i]) != "--list-workloads") continue;
    std::printf("%s\nFabrics:\n%s",
                topology::WorkloadHelp(collectives::CollectiveWorkloads()).c_str(),
                topology::GeneratorHelp().c_str());
    parsed.exit_status = 0;
    return parsed;
  }
  parsed.exit_status =
      ReadCommandLine(app, argc, argv, [&] { return Resolve(app, words, parsed.options); });
  return parsed;
}

}  // namespace weft::sim
