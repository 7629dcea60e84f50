// What is new in a ring of records (base/records.h) since it was read last, as bytes, so that a
// reader on another host keeps a copy up to date without fetching all of it each time: the numbers
// of the header, and names, lines and records that were added, deflated (RFC 1950).
//
// The bytes belong to one version of Weft, as the ring's do, and are checked before they are used.
// Not thread-safe.
#ifndef WEFT_TOOLS_OBSERVE_RING_CHANGES_H_
#define WEFT_TOOLS_OBSERVE_RING_CHANGES_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"

namespace weft::observe {

inline constexpr Bytes kRingMost = MiB(65);

// How much of a ring a reader has.
struct RingCursor {
  // RecordFileHeader::process_start: tells a later process of the same file name, all of whose ring
  // is new.
  uint64_t made = 0;
  uint64_t records = 0, names = 0, text = 0;
};
std::string CursorText(const RingCursor& cursor);  // "MADE.RECORDS.NAMES.TEXT"
// kInvalidArgument: not of that form.
absl::StatusOr<RingCursor> ParseCursor(absl::string_view text);

// Changes of the ring at `path`, which its process may be writing; a record overwritten meanwhile
// is sent as one that is lost. kInvalidArgument: no ring of this version; else as ReadFile().
absl::StatusOr<std::string> ChangesSince(const std::string& path, const RingCursor& cursor);

// The copy of a ring, in files that RecordReader may have mapped meanwhile.
class RingCopy {
 public:
  // In files PREFIX-MADE.weft, one a process.
  explicit RingCopy(std::string prefix) : prefix_(std::move(prefix)) {}
  RingCopy(RingCopy&& other) noexcept;
  RingCopy& operator=(RingCopy&&) = delete;
  ~RingCopy();

  // kDataLoss: these are no changes, or do not follow on the cursor; the copy stays as it was.
  absl::Status Apply(absl::string_view changes);
  const RingCursor& cursor() const { return cursor_; }
  const std::string& path() const { return path_; }  // empty before the first Apply()

 private:
  absl::Status Map(uint64_t made, uint64_t capacity);
  void Unmap();

  const std::string prefix_;
  std::string path_;
  RingCursor cursor_;
  std::byte* memory_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace weft::observe

#endif  // WEFT_TOOLS_OBSERVE_RING_CHANGES_H_
