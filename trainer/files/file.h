// Files, as training data and checkpoints need them: read by mapping, written whole or not at all.
//
//   MappedFile    a read-only view of a file; the file must not shrink while it is mapped
//   AtomicFile    appends to "<path>.tmp"; Commit() syncs it and renames it to <path>, so that a
//                 reader, or a crash at any moment, sees the old file or the new one and nothing
//                 else
//
// Errors name the path, what was being done and the kernel's reason. Objects are used by one thread
// at a time, except that a MappedFile may be read by many.
#ifndef WEFT_TRAINER_FILES_FILE_H_
#define WEFT_TRAINER_FILES_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace weft::train {

class MappedFile {
 public:
  static absl::StatusOr<MappedFile> Open(const std::string& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  absl::Span<const std::byte> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

 private:
  MappedFile() = default;
  std::string path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// What is left of a committed file after the machine has lost power.
enum class Durability {
  kSynced,  // all of it, under its name
  kNone,    // anything; other processes see it whole or not at all
};

class AtomicFile {
 public:
  // Truncates a "<path>.tmp" that an earlier, killed writer left behind. AlreadyExists, at once,
  // while another writer has the file: of this process, of this host, or, where the file system's
  // locks are its server's (NFS), of any host that has it. NFSv3's server may hold the lock of a
  // host that has died: until that host is up again, or "<path>.tmp" is deleted.
  static absl::StatusOr<AtomicFile> Create(const std::string& path);
  AtomicFile(AtomicFile&& other) noexcept;
  AtomicFile& operator=(AtomicFile&&) = delete;
  ~AtomicFile();  // without Commit: the temporary file is removed

  absl::Status Append(absl::Span<const std::byte> bytes);
  absl::Status Append(absl::string_view text);
  // Everything to the disk, then under its name. Nothing may be appended afterwards.
  absl::Status Commit(Durability durability = Durability::kSynced);

  int64_t size() const { return size_; }  // bytes appended so far
  const std::string& path() const { return path_; }

 private:
  AtomicFile() = default;
  absl::Status Flush();
  absl::Status WriteAll(const std::byte* data, size_t size);

  std::string path_;
  std::string temporary_path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  int64_t written_ = 0;  // bytes that the kernel has,
  int64_t started_ = 0;  // and that it was told to take to the disk
  std::vector<std::byte> buffer_;
};

absl::Status WriteFileAtomically(const std::string& path, absl::string_view content,
                                 Durability durability = Durability::kSynced);
// The file's bytes in order, some at a time. Unlike a MappedFile, a disk that fails is a status and
// not the signal SIGBUS. Cancelled where `gives_up`, which is looked at before each megabyte.
absl::Status ReadInChunks(const std::string& path,
                          const std::function<void(absl::Span<const std::byte>)>& take,
                          const std::atomic<bool>& gives_up = false);

// The bytes at `offset`. DataLoss where the file ends before.
absl::Status ReadAt(const std::string& path, int64_t offset, absl::Span<std::byte> out);

// "runs/demo/loss.svg" -> "runs/demo"; "loss.svg" -> ".".
std::string ParentFolder(const std::string& path);
// All missing folders of the path. Ok when it exists.
absl::Status MakeFolders(const std::string& path);
// A folder with all it holds, or a file. Ok when it is not there.
absl::Status RemoveTree(const std::string& path);
// Makes creations and renames in a folder durable.
absl::Status SyncFolder(const std::string& path);

}  // namespace weft::train

#endif  // WEFT_TRAINER_FILES_FILE_H_
