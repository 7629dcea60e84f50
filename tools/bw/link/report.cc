#include "tools/bw/link/report.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/json_text.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/bw/link/steps.h"

namespace weft::link_bw {
namespace {

std::string IfKnown(double value) { return value < 0 ? "-" : absl::StrFormat("%.0f", value); }

}  // namespace

Report::Report(const Options& options, int ranks, bool silent)
    : options_(options), ranks_(ranks), silent_(silent) {}

double Report::Scaled(double bytes_per_second) const {
  return bytes_per_second / 1e9 * (options_.gbits ? 8 : 1);
}

void Report::Begin(const std::string& links) {
  links_ = absl::StrSplit(links, '\n', absl::SkipEmpty());
  if (!prints()) return;
  const Load& load = options_.load;
  absl::PrintF("# weft-bw link: %s, %s%s, %d ranks over %s, %s, %s\n", ToString(load.test),
               load.test == Test::kSteps
                   ? absl::StrCat(ToString(load.collective), " on ", load.channels, " channels of ",
                                  weft::ToString(load.channel_bytes))
                   : ToString(load.pattern),
               load.in_turn ? " in turn" : "", ranks_, net::ToString(load.transport),
               load.iterations > 0 ? absl::StrCat(load.iterations, " iterations")
                                   : absl::FormatDuration(load.duration),
               load.events ? "sleeping" : "spinning");
  for (const std::string& link : links_) absl::PrintF("# %s\n", link);
  PrintHead();
}

void Report::PrintHead() const {
  const char* unit = options_.gbits ? "Gb/s" : "GB/s";
  switch (options_.load.test) {
    case Test::kBandwidth:
    case Test::kRate:
      absl::PrintF("#%11s %12s %14s %17s %14s %9s\n", "bytes", "messages",
                   absl::StrCat("BW peak[", unit, "]"), absl::StrCat("BW average[", unit, "]"),
                   "MsgRate[Mpps]", "CPU[s/GB]");
      break;
    case Test::kLatency:
      absl::PrintF("#%11s %12s %11s %11s %15s %11s %13s %11s %11s  [usec]\n", "bytes", "iterations",
                   "t_min", "t_max", "t_typical", "t_avg", "t_stdev", "99%", "99.9%");
      break;
    case Test::kSteps:
      absl::PrintF("#%11s %12s %12s %13s %13s %13s %12s %9s\n", "bytes", "operations", "time[usec]",
                   absl::StrCat("algbw[", unit, "]"), absl::StrCat("busbw[", unit, "]"),
                   "slice[usec]", "99%", "CPU[s/GB]");
      break;
  }
  std::fflush(stdout);
}

void Report::PrintRow(const Row& row) const {
  switch (options_.load.test) {
    case Test::kBandwidth:
    case Test::kRate: {
      int64_t messages = 0;
      for (const FlowResult& flow : row.flows) messages += flow.messages;
      absl::PrintF("%12d %12d %14.3f %17.3f %14.6f %9.3f\n", row.size.count(), messages,
                   Scaled(row.peak()), Scaled(row.bytes_per_second()),
                   row.messages_per_second() / 1e6, row.cpu_seconds_per_gigabyte());
      break;
    }
    case Test::kLatency: {
      const FlowResult& flow = row.slowest();
      absl::PrintF("%12d %12d %11.2f %11.2f %15.2f %11.2f %13.2f %11.2f %11.2f\n", row.size.count(),
                   flow.messages, flow.min_us, flow.max_us, flow.typical_us, flow.mean_us,
                   flow.deviation_us, flow.p99_us, flow.p999_us);
      break;
    }
    case Test::kSteps: {
      const double algorithm = static_cast<double>(row.size.count()) / (row.operation_us / 1e6);
      const FlowResult& flow = row.slowest();
      absl::PrintF("%12d %12d %12.2f %13.3f %13.3f %13.2f %12.2f %9.3f\n", row.size.count(),
                   row.operations, row.operation_us, Scaled(algorithm),
                   Scaled(algorithm * BusFactor(options_.load.collective, ranks_)), flow.typical_us,
                   flow.p99_us, row.cpu_seconds_per_gigabyte());
      break;
    }
  }
}

void Report::PrintFlows(const Row& row) const {
  if (row.flows.size() < 2 && !options_.load.in_turn) return;
  for (const FlowResult& flow : row.flows) {
    if (options_.load.test == Test::kLatency) {
      absl::PrintF("#   rank %d -> %d: %.2f us (99%% %.2f us)\n", flow.from, flow.to,
                   flow.typical_us, flow.p99_us);
    } else {
      absl::PrintF("#   rank %d -> %d: %.3f %s\n", flow.from, flow.to,
                   Scaled(flow.bytes_per_second), options_.gbits ? "Gb/s" : "GB/s");
    }
  }
}

void Report::PrintLanes(const Row& row) const {
  if (row.lanes.empty()) return;
  absl::PrintF("#\n#   lanes of %d bytes\n#   %-47s %6s %11s %11s %13s %12s\n", row.size.count(),
               "lane", "port", "MB", "RTT[usec]", "RTT 99%[usec]", "sent again");
  for (const LaneUse& lane : row.lanes) {
    absl::PrintF("#   %-47s %6s %11.1f %11s %13s %12s\n", lane.name,
                 lane.source_port > 0 ? absl::StrCat(lane.source_port) : "-",
                 static_cast<double>(lane.bytes) / 1e6, IfKnown(lane.rtt_p50_us),
                 IfKnown(lane.rtt_p99_us),
                 lane.retransmissions < 0 ? "-" : absl::StrCat(lane.retransmissions));
  }
}

nlohmann::ordered_json Report::Json(const Row& row) const {
  nlohmann::ordered_json json = {{"bytes", row.size.count()}, {"depth", row.depth}};
  if (options_.load.test == Test::kSteps) {
    const double algorithm = static_cast<double>(row.size.count()) / (row.operation_us * 1e3);
    json["operations"] = row.operations;
    json["time_us"] = row.operation_us;
    json["algbw_GBps"] = algorithm;
    json["busbw_GBps"] = algorithm * BusFactor(options_.load.collective, ranks_);
  }
  json["GBps"] = row.bytes_per_second() / 1e9;
  json["Gbps"] = row.bytes_per_second() * 8 / 1e9;
  json["messages_per_second"] = row.messages_per_second();
  json["cpu_seconds_per_GB"] = row.cpu_seconds_per_gigabyte();
  if (!row.limit.what.empty()) {
    json["limited_by"] = row.limit.what;
    json["limit"] = row.limit.sentence;
  }
  json["flows"] = nlohmann::ordered_json(nlohmann::json(row.flows));
  json["ranks"] = nlohmann::ordered_json(nlohmann::json(row.ranks));
  json["lanes"] = nlohmann::ordered_json(nlohmann::json(row.lanes));
  return json;
}

void Report::Add(const Row& row, bool last) {
  for (const FlowResult& flow : row.flows) wrong_ += flow.wrong;
  const Load& load = options_.load;
  double gbps = row.bytes_per_second() * 8 / 1e9;
  if (load.test == Test::kSteps) {
    gbps = static_cast<double>(row.size.count()) * 8 / (row.operation_us * 1e3) *
           BusFactor(load.collective, ranks_);
  }
  const double usec = load.test == Test::kLatency ? row.slowest().percentile_us : -1;
  // Sizes are alternatives of which the best counts; flows in turn are each to be as asked.
  if (best_gbps_ < 0 || gbps > best_gbps_) best_gbps_ = gbps;
  if (best_usec_ < 0 || (usec >= 0 && usec < best_usec_)) best_usec_ = usec;
  if (worst_gbps_ < 0 || gbps < worst_gbps_) worst_gbps_ = gbps;
  worst_usec_ = std::max(worst_usec_, usec);
  if (silent_) return;
  rows_.push_back(Json(row));
  if (!prints()) return;
  PrintRow(row);
  PrintFlows(row);
  if (last || options_.lanes) {
    PrintLanes(row);
    if (!row.limit.sentence.empty()) absl::PrintF("# %s\n", row.limit.sentence);
  }
  std::fflush(stdout);
}

std::vector<std::string> Report::Missed() const {
  std::vector<std::string> missed;
  const bool each = options_.load.in_turn;
  const double gbps = each ? worst_gbps_ : best_gbps_, usec = each ? worst_usec_ : best_usec_;
  if (options_.min_gbps > 0 && gbps < options_.min_gbps) {
    missed.push_back(absl::StrFormat("%.3f Gb/s, below --min-gbps %g", gbps, options_.min_gbps));
  }
  if (options_.max_usec > 0 && usec > options_.max_usec) {
    missed.push_back(absl::StrFormat("%.2f us (%g %%), above --max-usec %g", usec,
                                     options_.load.percentile, options_.max_usec));
  }
  return missed;
}

bool Report::limits_kept() const { return Missed().empty(); }

absl::Status Report::End() {
  if (silent_) return absl::OkStatus();
  const std::vector<std::string> missed = Missed();
  for (const std::string& one : missed) absl::FPrintF(stderr, "weft-bw link: %s\n", one);
  if (wrong_ > 0) absl::FPrintF(stderr, "weft-bw link: %d messages had wrong bytes\n", wrong_);
  if (options_.json.empty()) return absl::OkStatus();
  const nlohmann::ordered_json json = {{"program", "weft-bw link"},
                                       {"ranks", ranks_},
                                       {"load", nlohmann::ordered_json(options_.load.ToJson())},
                                       {"links", links_},
                                       {"rows", rows_},
                                       {"wrong_messages", wrong_},
                                       {"missed_limits", missed}};
  return WriteOutput(options_.json, JsonText(json, 2) + "\n");
}

}  // namespace weft::link_bw
