// What a process of a job does, as fixed-size records in a file in shared memory that outlives the
// process: always on, for weft-top, weft-trace, weft-diagnose and weft-agent.
//
// A record costs one atomic addition and eight stores: no lock, no system call, no allocation. When
// the ring is full the oldest records are overwritten; readers count what they missed. All calls
// are thread-safe but Open(). Times are SystemClock::Nanoseconds(). The format is private to one
// version of Weft and to one host; readers (record_files.h) check everything.
//
// The file is FOLDER/JOB-RANK-PID.weft, mode 0600. A process that ends in good order removes it
// (unless `keep`, or MarkFailed() was called); a process that dies leaves it. Open() removes files
// of processes that are gone for more than an hour; of all processes one looks for them, once in
// ten minutes, and marks that by the time of the file FOLDER/.searched.
#ifndef WEFT_BASE_RECORDS_H_
#define WEFT_BASE_RECORDS_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <type_traits>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/settings.h"
#include "base/units.h"

namespace weft {

enum class RecordKind : uint8_t { kNone, kCall, kDone, kFlow, kPhase, kStep };

// The number of a name in the file's table; 0: none (the table is full, or there is no file).
using RecordName = uint16_t;

// A collective or a message: kCall when it is called, kDone when it is over.
struct CallRecord {
  RecordKind kind = RecordKind::kCall;
  uint8_t code = 0;       // absl::StatusCode of a kDone
  RecordName name = 0;    // "all_reduce", "send"
  RecordName group = 0;   // "world"
  uint8_t type = 0;       // collectives::DataType
  uint8_t op = 0;         // collectives::ReduceOp
  int64_t start_ns = 0;   // of the call
  int64_t end_ns = 0;     // kDone
  uint32_t sequence = 0;  // of a collective in its group, from 0; of a message: its tag
  int32_t peer = -1;      // of a message: rank of the job; of a collective: -1
  uint64_t bytes = 0;     // of the whole buffer
  uint64_t count = 0;     // elements
  uint64_t check = 0;     // equal on all ranks of a collective, or they mean different calls
};

// A link while it is used: net::FlowCounters, sampled by the thread that drives the transports.
struct FlowRecord {
  RecordKind kind = RecordKind::kFlow;
  uint8_t sends = 0;
  RecordName name = 0;  // of the transport
  int32_t peer = 0;     // rank of the job
  int64_t time_ns = 0;
  uint32_t stuck_ms = 0;     // something is outstanding, and nothing has moved for so long
  uint32_t rtt_us = 0;       // 0: unknown
  uint16_t outstanding = 0;  // messages, at most 65535
  uint16_t waiting = 0;      // of them: whose other end has not been posted
  uint32_t repeats = 0;
  uint64_t bytes_matched = 0, bytes_transmitted = 0, bytes_done = 0;
};

// A part of a training step.
struct PhaseRecord {
  RecordKind kind = RecordKind::kPhase;
  uint8_t unused = 0;
  RecordName name = 0;  // "data", "forward", "wait_data", ...
  int32_t axis = 0;
  int64_t start_ns = 0, end_ns = 0;
  int64_t step = -1;
  uint64_t spare[3] = {};
};

struct StepRecord {
  RecordKind kind = RecordKind::kStep;
  uint8_t unused = 0;
  RecordName name = 0;
  int32_t spare = 0;
  int64_t start_ns = 0, end_ns = 0;
  int64_t step = 0;
  double loss = 0;
  uint64_t tokens = 0;     // of the whole job, in this step
  int64_t exposed_ns = 0;  // this rank's computing thread waited for communication
};

inline constexpr size_t kRecordWords = 7;
using RecordWords = std::array<uint64_t, kRecordWords>;
static_assert(sizeof(CallRecord) == sizeof(RecordWords));
static_assert(sizeof(FlowRecord) == sizeof(RecordWords));
static_assert(sizeof(PhaseRecord) == sizeof(RecordWords));
static_assert(sizeof(StepRecord) == sizeof(RecordWords));

// The start of the file, and then its slots.
struct RecordFileHeader {
  static constexpr uint64_t kMagic = 0x3143455254464557;  // "WEFTREC1"
  static constexpr size_t kNames = 250, kNameBytes = 32, kTextBytes = 16384, kBytes = 32768;

  uint64_t magic = 0;
  uint64_t capacity = 0;  // slots, a power of two
  int32_t rank = 0, world_size = 0;
  int64_t pid = 0;
  uint64_t process_start = 0;  // /proc/PID/stat, field 22: tells a later process of the same number
  int64_t monotonic_ns = 0, realtime_ns = 0;  // read together when the file was made
  char job[64] = {}, host[64] = {}, program[32] = {};
  alignas(64) std::atomic<uint64_t> next{0};     // records written since the beginning
  alignas(64) std::atomic<int64_t> alive_ns{0};  // the progress engine's last turn
  std::atomic<int64_t> ended_ns{0};              // in good order; 0: not yet, or never
  std::atomic<int64_t> step{-1};                 // the one under way
  std::atomic<int64_t> phase_since_ns{0};
  std::atomic<uint32_t> phase{0};  // RecordName
  std::atomic<uint32_t> failed{0};
  // What the launcher says once the process has ended (MarkReaped); 0: nothing yet.
  std::atomic<int64_t> reaped_ns{0};
  std::atomic<int32_t> wait_status{0};
  std::atomic<uint32_t> told_to_end{0};
  std::atomic<uint32_t> names{0};  // used entries of `name`, which begin at 1
  std::atomic<uint32_t> text_bytes{0};
  char name[kNames][kNameBytes] = {};
  char text[kTextBytes] = {};  // lines: "group NAME RANKS", "mesh tp2,dp4"
};
static_assert(sizeof(RecordFileHeader) <= RecordFileHeader::kBytes);

struct alignas(64) RecordSlot {
  std::atomic<uint64_t> sequence{0};  // 2k+1 while record k is written, 2k+2 once it is whole
  std::array<std::atomic<uint64_t>, kRecordWords> words;
};
static_assert(sizeof(RecordSlot) == 64);

struct RecordOptions {
  std::string folder;  // empty: DefaultRecordFolder()
  std::string job = "job";
  int rank = 0;
  int world_size = 1;
  Bytes bytes = KiB(256);
  bool keep = false;
};

class Records {
 public:
  // Errors: the folder is not this user's own, or cannot be written; the path is named.
  static absl::StatusOr<std::unique_ptr<Records>> Open(const RecordOptions& options);
  // As the settings records.* say; null where they are off, or, with a warning, where Open() fails:
  // a job runs on without records.
  static std::unique_ptr<Records> FromSettings(const Settings& settings, absl::string_view job,
                                               int rank, int world_size);
  ~Records();
  Records(const Records&) = delete;
  Records& operator=(const Records&) = delete;

  // Finds or adds. Takes a lock: to be called once for each name.
  RecordName Name(absl::string_view name);
  // A line for readers; false where there is no room for it.
  bool Say(absl::string_view line);

  template <typename T>
  void Write(const T& record) {
    static_assert(std::is_trivially_copyable_v<T>);
    Put(std::bit_cast<RecordWords>(record));
  }
  void SetAlive(int64_t now_ns) { header_->alive_ns.store(now_ns, std::memory_order_relaxed); }
  void SetStep(int64_t step) { header_->step.store(step, std::memory_order_relaxed); }
  // What the computing thread does from now on. Returns what it did before.
  RecordName SetPhase(RecordName phase, int64_t now_ns);
  void MarkFailed() { header_->failed.store(1, std::memory_order_relaxed); }

  const std::string& path() const { return path_; }

 private:
  Records(std::string path, RecordFileHeader* header, size_t bytes, bool keep);
  void Put(const RecordWords& words);

  const std::string path_;
  RecordFileHeader* const header_;
  RecordSlot* const slots_;
  const uint64_t mask_;
  const size_t bytes_;
  const bool keep_;
  const int64_t owner_pid_;  // a forked child neither ends nor removes the file
  std::mutex mutex_;         // names and text
  std::map<std::string, RecordName, std::less<>> names_;
};

// A phase of a step from its construction to its end, written as a record; while it lasts it is the
// process's phase. `records` may be null.
class PhaseScope {
 public:
  PhaseScope(Records* records, RecordName name, int64_t step);
  ~PhaseScope();
  PhaseScope(const PhaseScope&) = delete;
  PhaseScope& operator=(const PhaseScope&) = delete;

 private:
  Records* records_;
  PhaseRecord record_;
  RecordName before_ = 0;
};

// /dev/shm/weft-UID, else XDG_RUNTIME_DIR/weft, else /tmp/weft-UID.
std::string DefaultRecordFolder();

// Field 22 of /proc/PID/stat; 0: there is no such process.
uint64_t ProcessStart(int64_t pid);

}  // namespace weft

#endif  // WEFT_BASE_RECORDS_H_
