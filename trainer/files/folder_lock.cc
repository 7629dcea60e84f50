#include "trainer/files/folder_lock.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/host_name.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/files/file.h"

namespace weft::train {
namespace {

using Json = nlohmann::ordered_json;

// Another one after every start of the kernel, and the same in all its containers, which share the
// kernel's locks.
std::string ThisBoot() {
  absl::StatusOr<std::string> id = ReadFile("/proc/sys/kernel/random/boot_id");
  return id.ok() ? std::string(absl::StripSuffix(*id, "\n")) : HostName();
}

Json Parse(const std::string& signature) {
  Json holder = Json::parse(signature, nullptr, /*allow_exceptions=*/false);
  bool good = holder.is_object();
  for (const char* key : {"host", "boot", "since"}) {
    good = good && holder.contains(key) && holder[key].is_string();
  }
  return good && holder.contains("pid") && holder["pid"].is_number_integer() ? holder : Json();
}

std::string Describe(const std::string& signature) {
  Json holder = Parse(signature);
  if (holder.is_null()) return "a process that has not written its name";
  return absl::StrCat("process ", holder["pid"].get<int64_t>(), " on host ",
                      holder["host"].get<std::string>(), ", since ",
                      holder["since"].get<std::string>());
}

absl::Status Held(const std::string& path, const std::string& signature) {
  return absl::AlreadyExistsError(
      absl::StrCat(ParentFolder(path), " is in use by another job: ", Describe(signature), " (",
                   path, "). Wait for its end or stop it, or name another folder"));
}

// What shows that a holder is alive: each beat changes it. The file is opened anew each time,
// because a network file system asks its server for a file's state when the file is opened.
struct Sight {
  std::string signature;
  int64_t touched_ns = 0;
  bool operator==(const Sight&) const = default;
};
absl::StatusOr<Sight> Look(const std::string& path) {
  WEFT_ASSIGN_OR_RETURN(std::string signature, ReadFile(path));
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("stat ", path));
  return Sight{std::move(signature),
               int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec};
}

// The kernel's lock on the whole file. True when it has none for this file system.
absl::StatusOr<bool> LockInKernel(int descriptor, const std::string& path) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  if (fcntl(descriptor, F_OFD_SETLK, &lock) == 0) return false;
  if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL) return true;
  if (errno != EAGAIN && errno != EACCES) return ErrnoStatus(errno, absl::StrCat("lock ", path));
  // A holder writes its name right after it got the lock.
  std::string signature;
  for (int i = 0; i < 20 && signature.empty(); ++i) {
    if (i > 0) absl::SleepFor(absl::Milliseconds(50));
    WEFT_ASSIGN_OR_RETURN(signature, ReadFile(path));
  }
  return Held(path, signature);
}

}  // namespace

absl::StatusOr<std::unique_ptr<FolderLock>> FolderLock::Take(const std::string& folder,
                                                             const Options& options) {
  WEFT_RETURN_IF_ERROR(MakeFolders(folder));
  const std::string path = absl::StrCat(folder, "/lock");
  int descriptor = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (descriptor < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::unique_ptr<FolderLock> lock(new FolderLock(path, descriptor));
  WEFT_RETURN_IF_ERROR(lock->Acquire(options));
  return lock;
}

absl::Status FolderLock::Acquire(const Options& options) {
  const std::string boot = options.boot.empty() ? ThisBoot() : options.boot;
  WEFT_ASSIGN_OR_RETURN(bool no_kernel_lock, LockInKernel(descriptor_, path_));
  WEFT_ASSIGN_OR_RETURN(std::string found, ReadFile(path_));
  Json holder = Parse(found);
  const bool died =
      found.empty() || (!no_kernel_lock && holder.is_object() && holder["boot"] == boot);
  if (!died) WEFT_RETURN_IF_ERROR(AwaitSilence(options));
  WEFT_RETURN_IF_ERROR(Sign(boot));
  beater_ = std::thread([this, beat = options.beat] { Beat(beat); });
  if (died) return absl::OkStatus();
  // Another job may have watched the same silence.
  absl::SleepFor(options.beat);
  return Check();
}

absl::Status FolderLock::AwaitSilence(const Options& options) const {
  WEFT_ASSIGN_OR_RETURN(const Sight first, Look(path_));
  WEFT_LOG_WARN(path_, " names ", Describe(first.signature), "; watching for ",
                absl::FormatDuration(options.watch), " whether it is alive");
  const absl::Time end = SystemClock().Now() + options.watch;
  while (SystemClock().Now() < end) {
    absl::SleepFor(options.beat / 4);
    WEFT_ASSIGN_OR_RETURN(const Sight now, Look(path_));
    if (now.signature.empty()) return absl::OkStatus();
    if (now != first) return Held(path_, now.signature);
  }
  return absl::OkStatus();
}

absl::Status FolderLock::Sign(const std::string& boot) {
  const absl::Time now = absl::Now();
  Json holder = {{"host", HostName()},
                 {"pid", getpid()},
                 {"since", absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", now, absl::UTCTimeZone())},
                 {"boot", boot},
                 {"started_ns", absl::ToUnixNanos(now)}};
  std::string text = JsonText(holder) + "\n";
  const auto size = static_cast<ssize_t>(text.size());
  errno = ENOSPC;  // what a short write means
  if (ftruncate(descriptor_, 0) != 0 || pwrite(descriptor_, text.data(), text.size(), 0) != size ||
      fsync(descriptor_) != 0) {
    return ErrnoStatus(errno, absl::StrCat("write ", path_));
  }
  signature_ = std::move(text);
  return absl::OkStatus();
}

void FolderLock::Beat(absl::Duration beat) {
  // A beat that fails is as none: the next one is soon.
  while (!released_.WaitForNotificationWithTimeout(beat)) futimens(descriptor_, nullptr);
}

absl::Status FolderLock::Check() const {
  absl::StatusOr<std::string> found = ReadFile(path_);
  // A file that cannot be read now, or was removed, names nobody else.
  if (!found.ok() || found->empty() || *found == signature_) return absl::OkStatus();
  return absl::AbortedError(absl::StrCat(
      ParentFolder(path_), " was taken by another job: ", Describe(*found), " (", path_, ")"));
}

FolderLock::~FolderLock() {
  if (beater_.joinable()) {
    released_.Notify();
    beater_.join();
  }
  // On failure the name stays, of a process that is gone: as after a kill.
  if (!signature_.empty() && Check().ok() && ftruncate(descriptor_, 0) != 0) {
    WEFT_LOG_WARN(ErrnoStatus(errno, absl::StrCat("empty ", path_)).message());
  }
  close(descriptor_);
}

}  // namespace weft::train
