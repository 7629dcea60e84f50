// Reads the files that processes write by records.h, while they write or after they are gone.
//
// Nothing of a file is trusted: sizes and numbers are checked, texts end where they must, a record
// that is being written is skipped. A file of another user is not read (root reads all). Not
// thread-safe.
#ifndef WEFT_BASE_RECORD_FILES_H_
#define WEFT_BASE_RECORD_FILES_H_

#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/records.h"

namespace weft {

struct Record {
  RecordWords words{};
  RecordKind kind() const { return static_cast<RecordKind>(words[0] & 0xff); }
  template <typename T>
  T As() const {
    return std::bit_cast<T>(words);
  }
};

// What the file says of its process, as of now.
struct RecordProcess {
  std::string job, host, program;
  int rank = 0, world_size = 0;
  int64_t pid = 0;
  uint64_t process_start = 0;
  int64_t monotonic_ns = 0, realtime_ns = 0;  // of one moment
  int64_t alive_ns = 0, ended_ns = 0;
  int64_t step = -1;
  std::string phase;
  int64_t phase_since_ns = 0;
  bool failed = false;
  int64_t reaped_ns = 0;           // by its launcher; 0: not, or not by one that says so
  int wait_status = 0;             // as wait() gives it
  bool told_to_end = false;        // the launcher ended it: a victim
  std::vector<std::string> lines;  // what Records::Say said
};

// To be called by the launcher of a process that has ended: says in its ring how, and whether that
// was the launcher's doing. Nothing where the process left no ring.
void MarkReaped(const std::string& folder, int64_t pid, int wait_status, bool told_to_end,
                int64_t now_ns);

class RecordReader {
 public:
  static absl::StatusOr<std::unique_ptr<RecordReader>> Open(const std::string& path);
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  const std::string& path() const { return path_; }
  RecordProcess process() const;
  // Records since the last call, oldest first; the first call gives all that the ring holds. Stops
  // at a record that is being written, and skips it where the next call finds it unwritten still:
  // its writer may be dead.
  std::vector<Record> Read();
  // Overwritten before they were read, and skipped because they were being written.
  uint64_t lost() const { return lost_; }
  uint64_t written() const { return header_->next.load(std::memory_order_acquire); }
  std::string Name(RecordName name) const;  // "" where there is none

 private:
  RecordReader(std::string path, const RecordFileHeader* header, size_t bytes);

  const std::string path_;
  const RecordFileHeader* const header_;
  const RecordSlot* const slots_;
  const size_t bytes_;
  const uint64_t capacity_;  // as it was when the size was checked
  uint64_t next_ = 0;
  uint64_t stalled_ = UINT64_MAX;  // the record at which a call stopped last
  uint64_t lost_ = 0;
};

// The files of a folder, in the order of their names; empty: DefaultRecordFolder(). A folder that
// is not there has none.
std::vector<std::string> RecordFilesIn(const std::string& folder);

}  // namespace weft

#endif  // WEFT_BASE_RECORD_FILES_H_
