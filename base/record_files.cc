#include "base/record_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status.h"

namespace weft {
namespace {

template <size_t kBytes>
std::string Text(const char (&from)[kBytes]) {
  return std::string(from, strnlen(from, kBytes));
}

absl::Status NoRing(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(
      absl::StrCat(path, " is no file of records of this version of Weft: ", why));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordReader>> RecordReader::Open(const std::string& path) {
  const std::string doing = absl::StrCat("read the records in ", path);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return ErrnoStatus(errno, doing);
  struct stat found {};
  const bool known = fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
  const auto bytes = known ? static_cast<size_t>(found.st_size) : 0;
  if (known && found.st_uid != geteuid() && geteuid() != 0) {
    close(fd);
    return absl::PermissionDeniedError(
        absl::StrCat(path, " belongs to user ", found.st_uid, ", not to this one"));
  }
  void* const memory = bytes < RecordFileHeader::kBytes
                           ? MAP_FAILED
                           : mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  if (memory == MAP_FAILED) return NoRing(path, absl::StrCat("it has ", bytes, " bytes"));
  const auto* const header = static_cast<const RecordFileHeader*>(memory);
  const uint64_t slots = (bytes - RecordFileHeader::kBytes) / sizeof(RecordSlot);
  if (header->magic != RecordFileHeader::kMagic || header->capacity == 0 ||
      !std::has_single_bit(header->capacity) || header->capacity > slots) {
    const std::string why =
        header->magic != RecordFileHeader::kMagic
            ? "it begins otherwise"
            : absl::StrCat("it has room for ", slots, " records and names ", header->capacity);
    munmap(memory, bytes);
    return NoRing(path, why);
  }
  return std::unique_ptr<RecordReader>(new RecordReader(path, header, bytes));
}

RecordReader::RecordReader(std::string path, const RecordFileHeader* header, size_t bytes)
    : path_(std::move(path)),
      header_(header),
      slots_(reinterpret_cast<const RecordSlot*>(reinterpret_cast<const std::byte*>(header) +
                                                 RecordFileHeader::kBytes)),
      bytes_(bytes),
      capacity_(header->capacity) {}

RecordReader::~RecordReader() { munmap(const_cast<RecordFileHeader*>(header_), bytes_); }

RecordProcess RecordReader::process() const {
  const RecordFileHeader& header = *header_;
  RecordProcess out;
  out.job = Text(header.job);
  out.host = Text(header.host);
  out.program = Text(header.program);
  out.rank = header.rank;
  out.world_size = header.world_size;
  out.pid = header.pid;
  out.process_start = header.process_start;
  out.monotonic_ns = header.monotonic_ns;
  out.realtime_ns = header.realtime_ns;
  out.alive_ns = header.alive_ns.load(std::memory_order_relaxed);
  out.ended_ns = header.ended_ns.load(std::memory_order_relaxed);
  out.step = header.step.load(std::memory_order_relaxed);
  out.phase = Name(static_cast<RecordName>(header.phase.load(std::memory_order_relaxed)));
  out.phase_since_ns = header.phase_since_ns.load(std::memory_order_relaxed);
  out.failed = header.failed.load(std::memory_order_relaxed) != 0;
  out.reaped_ns = header.reaped_ns.load(std::memory_order_acquire);
  out.wait_status = header.wait_status.load(std::memory_order_relaxed);
  out.told_to_end = header.told_to_end.load(std::memory_order_relaxed) != 0;
  const size_t said = std::min<size_t>(header.text_bytes.load(std::memory_order_acquire),
                                       RecordFileHeader::kTextBytes);
  out.lines = absl::StrSplit(std::string(header.text, said), '\n', absl::SkipEmpty());
  return out;
}

std::string RecordReader::Name(RecordName name) const {
  const bool known = name > 0 && name < RecordFileHeader::kNames &&
                     name <= header_->names.load(std::memory_order_acquire);
  return known ? Text(header_->name[name]) : "";
}

std::vector<Record> RecordReader::Read() {
  const uint64_t end = written();
  if (end < next_) next_ = end;  // nothing that a writer of ours does
  const uint64_t begin = end - next_ > capacity_ ? end - capacity_ : next_;
  lost_ += begin - next_;
  std::vector<Record> out;
  out.reserve(end - begin);
  for (uint64_t number = begin; number < end; ++number) {
    const RecordSlot& slot = slots_[number & (capacity_ - 1)];
    Record record;
    const uint64_t before = slot.sequence.load(std::memory_order_acquire);
    for (size_t i = 0; i < kRecordWords; ++i) {
      record.words[i] = slot.words[i].load(std::memory_order_relaxed);
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    const uint64_t after = slot.sequence.load(std::memory_order_relaxed);
    if (before == 2 * number + 2 && after == before) {
      out.push_back(record);
    } else if (before < 2 * number + 2 && number != stalled_) {
      stalled_ = number;  // its writer has the number and not the words yet: the next call's
      next_ = number;
      return out;
    } else {
      ++lost_;
    }
  }
  next_ = end;
  return out;
}

void MarkReaped(const std::string& folder, int64_t pid, int wait_status, bool told_to_end,
                int64_t now_ns) {
  const std::string ending = absl::StrCat("-", pid, ".weft");
  for (const std::string& path : RecordFilesIn(folder)) {
    if (!absl::EndsWith(path, ending) || !RecordReader::Open(path).ok()) continue;  // checks it
    const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) continue;
    void* const memory =
        mmap(nullptr, RecordFileHeader::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (memory == MAP_FAILED) continue;
    auto* const header = static_cast<RecordFileHeader*>(memory);
    if (header->pid == pid) {
      header->wait_status.store(wait_status, std::memory_order_relaxed);
      header->told_to_end.store(told_to_end ? 1 : 0, std::memory_order_relaxed);
      header->reaped_ns.store(now_ns, std::memory_order_release);
    }
    munmap(memory, RecordFileHeader::kBytes);
  }
}

std::vector<std::string> RecordFilesIn(const std::string& folder) {
  const std::string where = folder.empty() ? DefaultRecordFolder() : folder;
  std::vector<std::string> out;
  DIR* const open = opendir(where.c_str());
  if (open == nullptr) return out;
  while (const dirent* entry = readdir(open)) {
    if (absl::EndsWith(entry->d_name, ".weft")) {
      out.push_back(absl::StrCat(where, "/", entry->d_name));
    }
  }
  closedir(open);
  std::sort(out.begin(), out.end());
  return out;
}

}  // namespace weft
