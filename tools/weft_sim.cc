// weft-sim: what a network does with a workload, packet by packet or by flows.
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/write_file.h"
#include "collectives/simulate/workloads.h"
#include "tools/sim/options.h"
#include "tools/sim/report.h"
#include "topology/fabric/draw.h"
#include "topology/fabric/load.h"
#include "topology/sim/flow/flow.h"
#include "topology/sim/switch_hashes.h"
#include "topology/sim/workloads/htsim_traffic.h"
#include "topology/sim/workloads/registry.h"

namespace weft::sim {
namespace {

using topology::Fabric;
using topology::Workload;

constexpr int kWrongUsage = 2;

// A line on standard error, about once a second, with the time that is left if things go on so.
class ProgressLine {
 public:
  ProgressLine(size_t operations, bool is_shown)
      : operations_(operations), is_shown_(is_shown), begin_(SystemClock::Nanoseconds()) {}
  ~ProgressLine() {
    if (has_line_) absl::FPrintF(stderr, "\n");
  }

  void Update(absl::Duration now, size_t done) {
    int64_t time = SystemClock::Nanoseconds();
    if (!is_shown_ || time - last_ < 1'000'000'000) return;
    last_ = time;
    double elapsed = static_cast<double>(time - begin_) * 1e-9;
    std::string left;
    if (done > 0 && done < operations_) {
      double share = static_cast<double>(done) / static_cast<double>(operations_);
      left = absl::StrFormat(", %.0f s left", elapsed / share * (1 - share));
    }
    absl::FPrintF(stderr, "%s%d of %d operations, %.2f us simulated, %.0f s%s   ",
                  has_line_ ? "\r" : "", done, operations_, absl::ToDoubleMicroseconds(now),
                  elapsed, left);
    has_line_ = true;
  }

 private:
  const size_t operations_;
  const bool is_shown_;
  const int64_t begin_;
  int64_t last_ = 0;
  bool has_line_ = false;
};

// PFC's dynamic threshold is a share of a switch's memory: where nobody has stated one, that of a
// current switch chip of 25 Tb/s.
constexpr Bytes kUsualMemory{64'000'000};

bool LacksMemory(const Fabric& fabric, const topology::PacketOptions& packet) {
  if (!packet.pfc.enabled || packet.pfc.xoff > Bytes(0) || packet.switch_buffer > Bytes(0)) {
    return false;
  }
  for (NodeId node : fabric.switches()) {
    if (fabric.node(node).buffer <= Bytes(0)) return true;
  }
  return false;
}

absl::Status Simulate(Run& run) {
  const Options& options = *run.options;
  const Fabric& fabric = *run.fabric;
  const Workload& workload = *run.workload;
  topology::PacketOptions packet = options.packet;
  if (!options.faults.empty()) {
    WEFT_ASSIGN_OR_RETURN(run.faults, ReadFaults(options.faults, fabric));
  }
  packet.faults = run.faults;
  packet.observer = &run.recorder;
  std::optional<topology::SwitchHashes> hashes;
  if (!options.hash.empty()) {
    auto made = topology::SwitchHashes::Create(fabric, options.hash, packet.seed);
    if (!made.ok()) return Annotate(made.status(), "--hash");
    packet.hash = &hashes.emplace(*std::move(made));
  }
  if (LacksMemory(fabric, packet)) packet.switch_buffer = kUsualMemory;
  ProgressLine line(workload.size(), !options.quiet && isatty(STDERR_FILENO) != 0);
  packet.progress = [&](absl::Duration now, size_t done) {
    line.Update(now, done);
    return true;
  };
  if (options.level == Level::kPacket) {
    WEFT_ASSIGN_OR_RETURN(run.result, SimulatePackets(fabric, workload, packet));
    return absl::OkStatus();
  }
  topology::FlowOptions flow;
  static_cast<topology::SimulationOptions&>(flow) = packet;
  flow.ack = packet.ack_size;
  WEFT_ASSIGN_OR_RETURN(run.result, SimulateFlows(fabric, workload, flow));
  return absl::OkStatus();
}

absl::Status WriteFiles(const Run& run, const nlohmann::ordered_json& json) {
  const Options& options = *run.options;
  if (!options.json.empty() && options.json != "-") {
    WEFT_RETURN_IF_ERROR(WriteFile(options.json, JsonText(json, 2) + "\n"));
  }
  if (!options.timeline.empty()) WEFT_RETURN_IF_ERROR(WriteTimeline(run, options.timeline));
  if (options.svg.empty()) return absl::OkStatus();
  std::vector<double> loads = LinkLoads(run);
  topology::DrawOptions draw;
  draw.values = loads;
  draw.title = absl::StrCat(options.traffic.empty() ? options.workload : options.traffic, " on ",
                            options.fabric);
  return WriteFile(options.svg, DrawSvg(*run.fabric, draw));
}

absl::StatusOr<int> RunOnce(const Options& options) {
  for (const std::string& file : {options.json, options.timeline, options.svg}) {
    WEFT_RETURN_IF_ERROR(CheckOutput(file));  // before what may take hours
  }
  int64_t begin = SystemClock::Nanoseconds();
  WEFT_ASSIGN_OR_RETURN(Fabric fabric, topology::LoadFabric(options.fabric));
  auto workload = options.traffic.empty()
                      ? topology::MakeWorkload(options.workload, fabric, options.packet.seed,
                                               collectives::CollectiveWorkloads())
                      : topology::ReadHtsimTraffic(options.traffic, fabric);
  if (!workload.ok()) return workload.status();
  Run run;
  run.options = &options;
  run.fabric = &fabric;
  run.workload = &*workload;
  WEFT_RETURN_IF_ERROR(Simulate(run));
  run.wall_seconds = static_cast<double>(SystemClock::Nanoseconds() - begin) * 1e-9;
  nlohmann::ordered_json json = ToJson(run);
  if (options.json == "-") {
    std::cout << JsonText(json, 2) << "\n" << std::flush;
  } else {
    std::fputs(ToText(json).c_str(), stdout);
  }
  WEFT_RETURN_IF_ERROR(WriteFiles(run, json));
  return run.result.unfinished == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int Main(int argc, char** argv) {
  Parsed parsed = ParseCommandLine(argc, argv);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  absl::StatusOr<int> status = RunOnce(parsed.options);
  if (status.ok()) return *status;
  absl::FPrintF(stderr, "weft-sim: %s\n", status.status().message());
  return absl::IsInvalidArgument(status.status()) ? kWrongUsage : EXIT_FAILURE;
}

}  // namespace
}  // namespace weft::sim

int main(int argc, char** argv) { return weft::sim::Main(argc, argv); }
