// A job as its rings show it: what each rank does now, what it waits for, and how long its last
// steps took. Plain data, so that the same code judges a live job, a recorded one and a made-up
// one.
#ifndef WEFT_TOOLS_OBSERVE_JOB_VIEW_H_
#define WEFT_TOOLS_OBSERVE_JOB_VIEW_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/record_files.h"
#include "tools/observe/host_readings.h"
#include "tools/observe/process_state.h"

namespace weft::observe {

// Names are resolved: those in the record are numbers of its file.
struct Call {
  std::string name, group;
  CallRecord record;
  bool is_message() const { return record.peer >= 0 || name == "send" || name == "receive"; }
};

struct Flow {
  std::string transport;
  FlowRecord record;
  int samples = 0;
  double busy = 0;    // of late: the part of the samples in which matched bytes were not done
  double rtt_us = 0;  // of late, on average
  uint32_t repeats_before = 0;  // in the first sample
};

struct StepTimes {
  int64_t step = 0;
  int64_t start_ns = 0, end_ns = 0;
  double loss = 0;
  uint64_t tokens = 0;
  bool own_is_finite = true;              // this rank's loss and gradients
  std::map<std::string, double> seconds;  // of each phase, without the phases within it
  std::map<std::string, double> work;     // tokens, of the phases that say so
  double total() const { return static_cast<double>(end_ns - start_ns) * 1e-9; }
  double waiting() const;  // in phases that begin with "wait"
  double own() const { return total() - waiting(); }
};

// What a process, or its host for it (host_readings.h), counts or measures. A program says it by a
// line of its ring, "reading TIME_NS SOURCE NAME VALUE", as "reading 17 gpu/0
// DCGM_FI_DEV_XID_ERRORS 79".
struct Reading {
  double first = 0, last = 0;
  int64_t changed_ns = 0;
  void Take(double value, int64_t time_ns);
  double grew() const { return last - first; }
  bool known = false;
};

// By source ("nic/mlx5_0/1", "gpu/0", "cgroup", "setting") and name.
using Readings = std::map<std::pair<std::string, std::string>, Reading>;

// A line of the ring, "error TIME_NS STEP CODE PLACE TEXT": CODE is a name of absl::StatusCode,
// PLACE "step", "checkpoint", "store", or another part of the program.
struct ToldError {
  int64_t time_ns = 0, step = 0;
  std::string code, place, text;
};

struct RankView {
  static constexpr size_t kStepsMax = 32, kCallsMax = 256;

  RecordProcess process;
  std::string path;
  ProcessState state;
  std::vector<Call> open;                         // oldest first
  std::map<std::pair<int, bool>, Flow> flows;     // the newest, by peer and whether it sends
  std::map<std::string, uint32_t> next;           // by group: the sequence number after the last
  std::map<std::string, std::deque<Call>> calls;  // by group: collectives, oldest first
  std::deque<StepTimes> steps;                    // oldest first
  // In good order, or so its exit status says.
  bool ended_well() const;
  // In a call that its computing thread waits for; a call that runs under its compute is none. A
  // process that has ended well waits for nobody, whatever its last records say.
  bool blocked() const;
  int64_t moved_ns = 0;  // when a call, a phase or a step ended last
  Readings readings;
  std::vector<ToldError> errors;          // oldest first
  std::vector<Call> corrupt;              // messages that ended with DATA_LOSS, at most kStepsMax
  std::map<int64_t, uint64_t> checksums;  // by step: what phases named replica_check found
  int phases_in_step = 0, phases_of_last_step = 0;  // that have ended
  // Null: nobody says.
  const Reading* FindReading(absl::string_view source, absl::string_view name) const;
  uint64_t written = 0, lost = 0;
  int rank() const { return process.rank; }
};

// The ranks of the job that are the members of a communicator with numbers of its own (NCCL's), by
// what the rings of all say.
class Members {
 public:
  // Takes the words of a line of rank `rank`'s ring: "member GROUP INDEX SIZE", or "group GROUP
  // RANKS".
  void Take(const std::vector<std::string>& words, int rank, int world_size);
  bool Has(const std::string& group) const { return numbered_.count(group) != 0; }
  // The rank that is number `index` of the group; -1: its ring is not here. The same number where
  // the group has no numbers of its own.
  int RankOf(const std::string& group, int index) const;
  // By index, of all groups with numbers of their own.
  std::map<std::string, std::vector<int>> groups() const;

 private:
  std::map<std::string, std::map<int, int>> ranks_;  // by group and index
  std::set<std::string> numbered_;
};

struct JobView {
  std::string job;
  int world_size = 0;
  int64_t now_ns = 0;
  std::string mesh;                                // "tp2,dp2,pp1"; empty: unknown
  std::vector<std::string> other_jobs;             // alive, where nobody asked for this one
  std::map<std::string, std::vector<int>> groups;  // ranks of the job, in the group's order
  Members members;
  std::map<int, RankView> ranks;
};

// Adds what a ring says to a rank's view. To be given every record in order.
class RankReader {
 public:
  // `shift_ns` is added to all times: the view's clock, less that of the ring's host.
  explicit RankReader(std::unique_ptr<RecordReader> reader, int64_t shift_ns = 0)
      : reader_(std::move(reader)), shift_ns_(shift_ns) {}
  // `sink` gets every record, may be null.
  using Sink = void (*)(void* context, const RecordReader&, const Record&);
  void Update(RankView* view, Sink sink = nullptr, void* context = nullptr);
  // By which peers are translated from now on; outlives this object.
  void set_members(const Members* members) { members_ = members; }
  const RecordReader& reader() const { return *reader_; }

 private:
  void TakeCall(CallRecord record, bool done, RankView* view);
  void TakeFlow(FlowRecord record, RankView* view);
  // spare[0] is, of a phase named replica_check, the checksum of what all replicas have alike; of
  // others, the tokens that the rank worked on, 0: unknown.
  void TakePhase(const PhaseRecord& record, RankView* view);
  void TakeLines(RankView* view);
  void TakeStep(const StepRecord& record, RankView* view);

  struct Span {
    std::string name;
    int64_t start_ns = 0, end_ns = 0;
  };
  std::unique_ptr<RecordReader> reader_;
  int64_t shift_ns_;
  const Members* members_ = nullptr;
  // By peer and whether it sends: the newest of each communicator's flow.
  std::map<std::pair<int, bool>, std::map<std::string, FlowRecord>> flows_;
  std::vector<Span> spans_;                       // ended, and not inside of one that has ended
  std::map<std::string, double> seconds_, work_;  // of the step under way
  size_t lines_taken_ = 0;
  std::string host_;  // as a line "host NAME" says; empty: the ring's own
};

// Watches the rings of a folder.
class JobWatch {
 public:
  // `folder` empty: DefaultRecordFolder(). `job` empty: the one that began last, of those that are
  // alive, where any is.
  JobWatch(std::string folder, std::string job);
  // What an agent said of a ring that was fetched from it; before Update().
  struct Told {
    ProcessState state;
    Readings readings;  // of its host, by this host's clock
    int64_t shift_ns = 0;
  };
  void Tell(const std::string& path, const Told& told) { told_[path] = told; }
  // Reads what is new. `live`: asks the kernel how the processes are; else the view's time is when
  // any process did anything last.
  void Update(bool live, int64_t now_ns);
  const JobView& view() const { return view_; }
  bool found() const { return !view_.ranks.empty(); }
  const std::string& folder() const { return folder_; }
  uint64_t unreadable() const { return unreadable_; }  // files, at the last update

 private:
  void ChooseJob(bool live);
  void FindRings();
  void DropEarlierRuns();
  void ReadLines();
  void TakeReadings(int64_t now_ns);
  int64_t ShiftOf(const std::string& path, const RecordProcess& process);
  bool IsLater(const std::string& path, const RecordProcess& process, int64_t shift_ns,
               const RankView& known) const;

  const std::string folder_;
  std::string job_;
  bool chosen_ = false;
  std::map<std::string, RankReader> readers_;  // by path
  std::map<std::string, int> rank_of_;
  std::set<std::string> followed_;  // paths of rings in whose place a later process's has come
  std::set<std::string> together_;  // paths of rings whose processes were seen alive all at once
  std::map<std::string, Told> told_;
  int64_t base_ns_ = 0;  // realtime less monotonic of the first ring's host
  std::string base_host_;
  HostReadings host_;
  int64_t readings_at_ns_ = 0;
  JobView view_;
  uint64_t unreadable_ = 0;
};

std::string JobOf(const RecordProcess& process);

struct JobInFolder {
  int64_t began_ns = 0;  // realtime, of its last process
  bool alive = false;    // any of its processes
};
// Every job that has rings in the folder, by its name. `told`: of rings of other hosts, by path.
std::map<std::string, JobInFolder> JobsIn(const std::string& folder,
                                          const std::map<std::string, JobWatch::Told>& told = {});

// "0-3 8 12-15"; what cannot be read is left out.
std::vector<int> ParseRanks(absl::string_view text, int world_size);
std::string RanksText(const std::vector<int>& ranks);  // the same, with commas: "0-3,8"

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_JOB_VIEW_H_
