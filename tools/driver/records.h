// What weft-driver and the weft-executors of a job write into its store, as JSON. All keys begin
// with "driver/"; the store has turned away whoever does not know the job's secret.
//
//   driver/state        DriverRecord: the one truth. Written by compare-and-set alone, so that a
//                       driver whose place another has taken changes nothing; executors watch it.
//   driver/hosts        names of hosts that have ever joined, each with '\n' behind
//   driver/host/NAME    HostReport: the executor's heartbeat. By compare-and-set, too: an executor
//                       of an earlier incarnation cannot join again.
//   driver/bell         counts what a driver should look at at once; the driver watches it
//
// Parsing bounds what it takes and never throws; kDataLoss names what is wrong,
// kFailedPrecondition a DriverRecord of another version. Pure functions.
#ifndef WEFT_TOOLS_DRIVER_RECORDS_H_
#define WEFT_TOOLS_DRIVER_RECORDS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "tools/recovery/decisions.h"

namespace weft::driver {

inline constexpr char kStateKey[] = "driver/state";
inline constexpr char kHostsKey[] = "driver/hosts";
inline constexpr char kBellKey[] = "driver/bell";
std::string ReportKey(absl::string_view host);

// A name that is a key's part and a line of driver/hosts: 1 to 200 letters, digits, '.', '_', '-'.
absl::Status CheckHostName(absl::string_view name);

// One thing that was done, for people.
struct HistoryLine {
  absl::Time time;  // by the driver's clock
  std::string text;
  bool operator==(const HistoryLine&) const = default;
};

struct DriverRecord {
  // The version of the record's form. Whoever adds or removes a member below or in JobState, or
  // gives one another meaning, counts it up: a reader requires all members but `replay` and
  // `outcome`. A record without a version has version 1.
  static constexpr int64_t kVersion = 1;
  static constexpr size_t kHistoryMost = 100;  // lines

  int64_t incarnation = 0;  // of the driver that wrote it
  std::string writer;       // its token (own_record.h)
  recovery::Policy policy;
  absl::Duration lease;  // of executors (fence.h)
  bool closed = false;   // the job is over, and whoever was to be told knows
  recovery::JobState job;
  std::vector<HistoryLine> history;  // oldest first
};

// What an executor reports of one rank on its host.
struct RankReport {
  int rank = -1;
  int generation = 0;
  int64_t pid = -1;
  bool alive = false;
  std::string end;                  // where it is not: as collectives::ToText writes it
  int64_t step = -1;                // done last; -1: not known
  std::vector<std::string> errors;  // the last lines that look like errors
};

struct HostReport {
  int64_t incarnation = 0;
  std::string writer;         // the token of the executor that wrote it (own_record.h)
  int64_t beat = 0;           // counts up
  std::string address, rack;  // as of HostState
  absl::Duration lease;       // that the executor goes by
  std::string agent;          // "host:port" of the pages of its ranks' records; empty: none
  std::string agent_token;
  int64_t pid = -1;
  bool leaves = false;  // is to be drained
  bool over = false;    // has ended its ranks because the job is over
  int spares = 0;       // processes that are warm
  int64_t bytes = 0;    // of messages that its ranks have sent and received, by their records
  std::vector<RankReport> ranks;
  // The result of the last self-test; number 0: none.
  int64_t test = 0;
  bool passed = false;
  bool untested = false;  // there is nothing that could test this host
  std::string test_text;
  // The last replay that the host has finished: its task (Replay::task), 0: none; and a digest for
  // each group that the host was in, empty where it failed, with the reason in `replay_text`.
  int64_t replay = 0;
  std::vector<std::string> digests;
  std::string replay_text;
  std::vector<std::string> findings;  // of what its ranks record: why the job stands still
  // What its ranks have written of where the time of recoveries went: on the host of rank 0.
  std::vector<std::string> recoveries;
};

std::string ToJson(const DriverRecord& record);
std::string ToJson(const HostReport& report);
absl::StatusOr<DriverRecord> ParseDriverRecord(absl::string_view text);
absl::StatusOr<HostReport> ParseHostReport(absl::string_view text);

}  // namespace weft::driver

#endif  // WEFT_TOOLS_DRIVER_RECORDS_H_
