#include "collectives/store/server/store_journal.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/little_endian.h"
#include "base/log.h"
#include "base/status.h"

namespace weft::collectives {
namespace {

constexpr size_t kPrefixBytes = 8;  // length, checksum
// The first record of a journal, which names its server, takes less: what is longer and begins with
// none was not cut off at its beginning.
constexpr size_t kFirstRecordMost = 128;

void PutText(std::string& out, absl::string_view text) {
  PutLittle(out, static_cast<uint32_t>(text.size()));
  absl::StrAppend(&out, text);
}

bool TakeText(absl::string_view& bytes, std::string& out) {
  uint32_t size = 0;
  if (!TakeLittle(bytes, &size) || bytes.size() < size) return false;
  out = std::string(bytes.substr(0, size));
  bytes.remove_prefix(size);
  return true;
}

bool Decode(absl::string_view body, StoreRecord& record) {
  if (body.size() < 17) return false;
  auto kind = static_cast<uint8_t>(body[0]);
  if (kind < 1 || kind > static_cast<uint8_t>(StoreRecord::Kind::kReply)) return false;
  record.kind = static_cast<StoreRecord::Kind>(kind);
  record.number = LoadLittle<uint64_t>(body.substr(1));
  record.other = LoadLittle<uint64_t>(body.substr(9));
  body.remove_prefix(17);
  return TakeText(body, record.job) && TakeText(body, record.key) && TakeText(body, record.text) &&
         body.empty();
}

// Empty, for this user alone though it was there before.
absl::StatusOr<FileDescriptor> CreatePrivate(const std::string& path) {
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file || fchmod(file.get(), 0600) != 0) {
    return ErrnoStatus(errno, absl::StrCat("open ", path));
  }
  return file;
}

absl::Status WriteAll(int fd, absl::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return ErrnoStatus(errno, absl::StrCat("write the store's journal ", path));
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

}  // namespace

void AppendRecord(std::string& out, const StoreRecord& record) {
  std::string body;
  PutLittle(body, static_cast<uint8_t>(record.kind));
  PutLittle(body, record.number);
  PutLittle(body, record.other);
  PutText(body, record.job);
  PutText(body, record.key);
  PutText(body, record.text);
  PutLittle(out, static_cast<uint32_t>(body.size()));
  PutLittle(out, Crc32c(body));
  out += body;
}

absl::StatusOr<size_t> ReadRecords(absl::string_view bytes,
                                   const std::function<absl::Status(StoreRecord)>& visit) {
  size_t read = 0;
  while (bytes.size() - read >= kPrefixBytes) {
    absl::string_view rest = bytes.substr(read);
    size_t size = LoadLittle<uint32_t>(rest);
    if (rest.size() < kPrefixBytes + size) break;
    absl::string_view body = rest.substr(kPrefixBytes, size);
    StoreRecord record;
    if (Crc32c(body) != LoadLittle<uint32_t>(rest.substr(4)) || !Decode(body, record)) break;
    WEFT_RETURN_IF_ERROR(visit(std::move(record)));
    read += kPrefixBytes + size;
  }
  return read;
}

absl::StatusOr<std::unique_ptr<StoreJournal>> StoreJournal::Open(const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("make the folder ", folder));
  std::string path = absl::StrCat(folder, "/store.journal");
  std::string lock_path = absl::StrCat(folder, "/lock");
  FileDescriptor lock(open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) return ErrnoStatus(errno, absl::StrCat("open ", lock_path));
  if (flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    return absl::AlreadyExistsError(
        absl::StrCat("another process serves a store with its state in ", folder));
  }
  FileDescriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!file) return ErrnoStatus(errno, absl::StrCat("open ", path));
  return std::unique_ptr<StoreJournal>(
      new StoreJournal(std::move(path), std::move(lock), std::move(file)));
}

absl::Status StoreJournal::Read(const std::function<absl::Status(StoreRecord)>& visit) {
  struct stat info {};
  if (fstat(file_.get(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("read ", path_));
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    ssize_t got = pread(file_.get(), bytes.data() + filled, bytes.size() - filled,
                        static_cast<off_t>(filled));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return ErrnoStatus(got == 0 ? EIO : errno, absl::StrCat("read ", path_));
    filled += static_cast<size_t>(got);
  }
  WEFT_ASSIGN_OR_RETURN(bytes_, ReadRecords(bytes, visit));
  if (bytes_ == 0 && bytes.size() > kFirstRecordMost) {
    return absl::DataLossError(absl::StrCat(
        path_, " (", bytes.size(), " bytes) begins with no record of a store's journal: it is ",
        "damaged, or something else; move it away to begin anew"));
  }
  if (bytes_ < bytes.size()) {
    const std::string cut = absl::StrCat(path_, ".cut");
    WEFT_ASSIGN_OR_RETURN(FileDescriptor kept, CreatePrivate(cut));
    WEFT_RETURN_IF_ERROR(WriteAll(kept.get(), absl::string_view(bytes).substr(bytes_), cut));
    WEFT_LOG_WARN("the store's journal ", path_, " is whole up to byte ", bytes_, " of ",
                  bytes.size(), "; the rest is dropped, and kept in ", cut);
  }
  if (ftruncate(file_.get(), static_cast<off_t>(bytes_)) != 0 ||
      lseek(file_.get(), static_cast<off_t>(bytes_), SEEK_SET) < 0) {
    return ErrnoStatus(errno, absl::StrCat("cut ", path_));
  }
  return absl::OkStatus();
}

absl::Status StoreJournal::Append(absl::string_view records) {
  WEFT_RETURN_IF_ERROR(WriteAll(file_.get(), records, path_));
  bytes_ += records.size();
  return absl::OkStatus();
}

absl::Status StoreJournal::Replace(absl::string_view records) {
  const std::string fresh = absl::StrCat(path_, ".new");
  auto replace = [&]() -> absl::Status {
    WEFT_ASSIGN_OR_RETURN(FileDescriptor file, CreatePrivate(fresh));
    WEFT_RETURN_IF_ERROR(WriteAll(file.get(), records, fresh));
    if (fdatasync(file.get()) != 0 || rename(fresh.c_str(), path_.c_str()) != 0) {
      return ErrnoStatus(errno, absl::StrCat("replace ", path_));
    }
    file_ = std::move(file);
    bytes_ = records.size();
    return absl::OkStatus();
  };
  absl::Status status = replace();
  if (!status.ok()) unlink(fresh.c_str());
  return status;
}

absl::Status StoreJournal::Invalidate() {
  bytes_ = 0;
  if (ftruncate(file_.get(), 0) == 0) return absl::OkStatus();
  const int error = errno;
  if (unlink(path_.c_str()) == 0) return absl::OkStatus();
  return ErrnoStatus(error, absl::StrCat("empty ", path_));
}

}  // namespace weft::collectives
