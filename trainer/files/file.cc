#include "trainer/files/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::train {
namespace {

constexpr size_t kWriteBuffer = 1 << 20;  // one write call per MiB
// The kernel is told to begin with the disk after so many bytes, so that the disk works under the
// rest of the writing and little is left for the sync at the end.
constexpr int64_t kStartWriting = int64_t{8} << 20;

// Closes on every return path.
struct Descriptor {
  explicit Descriptor(int number) : number(number) {}
  ~Descriptor() {
    if (number >= 0) close(number);
  }
  int number;
};

// Opens the empty file `path` for writing, locked until its last descriptor is closed: two writers
// would mix their bytes, and the first to commit would publish what the second still writes. File
// systems without locks do without.
absl::StatusOr<int> OpenLocked(const std::string& path) {
  constexpr int kTries = 100;
  for (int i = 0; i < kTries; ++i) {
    Descriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644));
    if (file.number < 0) return ErrnoStatus(errno, absl::StrCat("create ", path));
    if (flock(file.number, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) break;
    struct stat opened, named;
    if (fstat(file.number, &opened) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
    const bool is_named = stat(path.c_str(), &named) == 0 && named.st_dev == opened.st_dev &&
                          named.st_ino == opened.st_ino;
    if (!is_named) continue;  // its writer has renamed or removed it in between
    if (opened.st_size > 0 && ftruncate(file.number, 0) != 0) {
      return ErrnoStatus(errno, absl::StrCat("empty ", path));
    }
    return std::exchange(file.number, -1);
  }
  return absl::AlreadyExistsError(absl::StrCat(
      path,
      " is being written by another process; wait for its end, or choose another name. Where "
      "no process writes it, as after a host that had it on NFS has died, delete ",
      path));
}

}  // namespace

absl::StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (fstat(file.number, &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(path, " is not a regular file"));
  }
  MappedFile mapped;
  mapped.path_ = path;
  mapped.size_ = static_cast<size_t>(info.st_size);
  if (mapped.size_ == 0) return mapped;  // mmap refuses a length of 0
  void* address = mmap(nullptr, mapped.size_, PROT_READ, MAP_SHARED, file.number, 0);
  if (address == MAP_FAILED) {
    mapped.size_ = 0;
    return ErrnoStatus(errno, absl::StrCat("map ", path, " (", info.st_size, " bytes)"));
  }
  mapped.data_ = static_cast<const std::byte*>(address);
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<std::byte*>(data_), size_);
}

absl::StatusOr<AtomicFile> AtomicFile::Create(const std::string& path) {
  AtomicFile file;
  file.path_ = path;
  file.temporary_path_ = path + ".tmp";
  WEFT_ASSIGN_OR_RETURN(file.descriptor_, OpenLocked(file.temporary_path_));
  file.buffer_.reserve(kWriteBuffer);
  return file;
}

AtomicFile::AtomicFile(AtomicFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_path_(std::move(other.temporary_path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_(other.size_),
      written_(other.written_),
      started_(other.started_),
      buffer_(std::move(other.buffer_)) {}

AtomicFile::~AtomicFile() {
  if (descriptor_ < 0) return;
  unlink(temporary_path_.c_str());  // while it is locked: no other writer's
  close(descriptor_);
}

absl::Status AtomicFile::WriteAll(const std::byte* data, size_t size) {
  while (size > 0) {
    ssize_t written = write(descriptor_, data, size);
    if (written < 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, absl::StrCat("write ", temporary_path_, " (", size, " bytes more; ",
                                             path_, " is left as it was)"));
    }
    data += written;
    size -= static_cast<size_t>(written);
    written_ += written;
  }
  if (written_ - started_ >= kStartWriting) {
    // A hint: what it does not do, or cannot on this file system, the sync does.
    (void)sync_file_range(descriptor_, started_, written_ - started_, SYNC_FILE_RANGE_WRITE);
    started_ = written_;
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Flush() {
  absl::Status status = WriteAll(buffer_.data(), buffer_.size());
  buffer_.clear();
  return status;
}

absl::Status AtomicFile::Append(absl::Span<const std::byte> bytes) {
  WEFT_CHECK(descriptor_ >= 0, "append to " << path_ << " after Commit");
  size_ += static_cast<int64_t>(bytes.size());
  if (buffer_.size() + bytes.size() > kWriteBuffer) WEFT_RETURN_IF_ERROR(Flush());
  if (bytes.size() >= kWriteBuffer) return WriteAll(bytes.data(), bytes.size());
  buffer_.insert(buffer_.end(), bytes.begin(), bytes.end());
  return absl::OkStatus();
}

absl::Status AtomicFile::Append(absl::string_view text) {
  return Append(absl::MakeConstSpan(reinterpret_cast<const std::byte*>(text.data()), text.size()));
}

absl::Status AtomicFile::Commit(Durability durability) {
  WEFT_CHECK(descriptor_ >= 0, "second Commit of " << path_);
  WEFT_RETURN_IF_ERROR(Flush());
  const bool is_synced = durability == Durability::kSynced;
  if (is_synced && fsync(descriptor_) != 0)
    return ErrnoStatus(errno, absl::StrCat("sync ", temporary_path_));
  const Descriptor lock(fcntl(descriptor_, F_DUPFD_CLOEXEC, 0));  // until the file has its name
  // Network file systems report a full disk only here.
  if (close(std::exchange(descriptor_, -1)) != 0) {
    int error = errno;
    unlink(temporary_path_.c_str());
    return ErrnoStatus(error, absl::StrCat("close ", temporary_path_));
  }
  if (rename(temporary_path_.c_str(), path_.c_str()) != 0) {
    int error = errno;
    unlink(temporary_path_.c_str());
    return ErrnoStatus(error, absl::StrCat("rename ", temporary_path_, " to ", path_));
  }
  return is_synced ? SyncFolder(ParentFolder(path_)) : absl::OkStatus();
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content,
                                 Durability durability) {
  WEFT_ASSIGN_OR_RETURN(AtomicFile file, AtomicFile::Create(path));
  WEFT_RETURN_IF_ERROR(file.Append(content));
  return file.Commit(durability);
}

absl::Status ReadInChunks(const std::string& path,
                          const std::function<void(absl::Span<const std::byte>)>& take,
                          const std::atomic<bool>& gives_up) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::vector<std::byte> chunk(kWriteBuffer);
  while (true) {
    if (gives_up.load()) return absl::CancelledError(absl::StrCat("read ", path, ": given up"));
    ssize_t count = read(file.number, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (count == 0) return absl::OkStatus();
    take(absl::MakeConstSpan(chunk).first(static_cast<size_t>(count)));
  }
}

absl::Status ReadAt(const std::string& path, int64_t offset, absl::Span<std::byte> out) {
  Descriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.number < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  while (!out.empty()) {
    const ssize_t count = pread(file.number, out.data(), out.size(), offset);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (count == 0) {
      return absl::DataLossError(
          absl::StrCat(path, " ends at byte ", offset, "; ", out.size(), " more were expected"));
    }
    out.remove_prefix(static_cast<size_t>(count));
    offset += count;
  }
  return absl::OkStatus();
}

std::string ParentFolder(const std::string& path) {
  std::string parent = std::filesystem::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  if (error) return ErrnoStatus(error.value(), absl::StrCat("create folder ", path));
  return absl::OkStatus();
}

absl::Status RemoveTree(const std::string& path) {
  std::error_code error;
  std::filesystem::remove_all(path, error);
  return error ? ErrnoStatus(error.value(), absl::StrCat("remove ", path)) : absl::OkStatus();
}

absl::Status SyncFolder(const std::string& path) {
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.number < 0) return ErrnoStatus(errno, absl::StrCat("open folder ", path));
  // EINVAL: a file system that has no notion of syncing a folder.
  if (fsync(folder.number) != 0 && errno != EINVAL) {
    return ErrnoStatus(errno, absl::StrCat("sync folder ", path));
  }
  return absl::OkStatus();
}

}  // namespace weft::train
