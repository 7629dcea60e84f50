#include "base/records.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/file_room.h"
#include "base/first_line.h"
#include "base/host_name.h"
#include "base/log.h"
#include "base/status.h"

namespace weft {
namespace {

constexpr int64_t kForgetAfterNs = 3'600'000'000'000;

// Time between two searches of a folder for forgotten files, whichever process makes them: a search
// looks at every file, and a job of many processes would make one for each.
constexpr int64_t kSearchEveryNs = 600'000'000'000;
constexpr char kSearched[] = ".searched";  // its time of change: the last search

// The same between two counts of what dead processes left. It costs milliseconds where that is
// much, and the processes of a job start together.
constexpr int64_t kCountEveryNs = 1'000'000'000;
constexpr char kCounted[] = ".counted";

// For file names: a job's name may hold anything.
std::string Plain(absl::string_view text) {
  std::string out;
  for (char c : text.substr(0, 48)) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '.' || c == '_';
    out += fine ? c : '_';
  }
  return out.empty() ? "job" : out;
}

template <size_t kBytes>
void CopyText(absl::string_view from, char (&to)[kBytes]) {
  const size_t size = std::min(from.size(), kBytes - 1);
  std::memcpy(to, from.data(), size);
}

int64_t Realtime() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Made by this user, for this user alone; what is there must be so.
absl::Status OwnFolder(const std::string& folder) {
  const std::string doing = absl::StrCat("make the folder of records ", folder);
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, doing);
  struct stat found {};
  if (lstat(folder.c_str(), &found) != 0) return ErrnoStatus(errno, doing);
  if (!S_ISDIR(found.st_mode)) {
    return absl::FailedPreconditionError(absl::StrCat(folder, " is no folder"));
  }
  if (found.st_uid != geteuid() || (found.st_mode & 022) != 0) {
    return absl::PermissionDeniedError(absl::StrCat(
        "the folder of records ", folder, " belongs to user ", found.st_uid, " with mode ",
        absl::Hex(found.st_mode & 0777), " (hexadecimal); it must be this user's (", geteuid(),
        "), and writable for nobody else"));
  }
  return absl::OkStatus();
}

// When the process of this file was last seen to do anything; the mapping leaves no other trace.
int64_t LastSign(const std::string& path) {
  int64_t alive_ns = 0;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return 0;
  const bool read = pread(fd, &alive_ns, sizeof(alive_ns), offsetof(RecordFileHeader, alive_ns)) ==
                    static_cast<ssize_t>(sizeof(alive_ns));
  close(fd);
  return read ? alive_ns : 0;
}

int64_t ChangedNs(const struct stat& file) {
  return int64_t{file.st_mtim.tv_sec} * 1'000'000'000 + file.st_mtim.tv_nsec;
}

// True once in `every_ns`, to one process, and never to one that asks while another is being told.
// The time of change of the mark, a file of the folder, is that of the last time. Also true where
// the mark cannot be written.
bool IsDue(const std::string& folder, const char* name, int64_t every_ns) {
  const std::string mark = absl::StrCat(folder, "/", name);
  struct stat found {};
  const int64_t now_ns = Realtime();
  const auto is_recent = [&] {
    const int64_t ago_ns = now_ns - ChangedNs(found);
    return ago_ns >= 0 && ago_ns < every_ns;  // the clock may have been set back
  };
  const bool is_there = lstat(mark.c_str(), &found) == 0 && S_ISREG(found.st_mode);
  if (is_there && is_recent()) return false;
  const int fd = open(mark.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return true;
  const bool is_first =
      flock(fd, LOCK_EX | LOCK_NB) == 0 && (!is_there || (fstat(fd, &found) == 0 && !is_recent()));
  if (is_first) futimens(fd, nullptr);
  close(fd);
  return is_first;
}

// A file "JOB-RANK-PID.weft".
struct RecordFile {
  std::string path;
  int64_t pid = 0;
  int64_t bytes = 0;
  int64_t changed_ns = 0;  // real time
};

std::vector<RecordFile> FilesOf(const std::string& folder) {
  std::vector<RecordFile> files;
  DIR* const open = opendir(folder.c_str());
  if (open == nullptr) return files;
  while (const dirent* entry = readdir(open)) {
    const absl::string_view name = entry->d_name;
    if (!absl::EndsWith(name, ".weft")) continue;
    RecordFile file;
    file.path = absl::StrCat(folder, "/", name);
    struct stat found {};
    const std::string stem(name.substr(0, name.size() - 5));
    if (lstat(file.path.c_str(), &found) != 0 || !S_ISREG(found.st_mode)) continue;
    if (!absl::SimpleAtoi(stem.substr(stem.rfind('-') + 1), &file.pid)) continue;
    file.bytes = found.st_size;
    file.changed_ns = ChangedNs(found);
    files.push_back(std::move(file));
  }
  closedir(open);
  return files;
}

// Removes files of processes that are gone, an hour after they did anything.
void RemoveForgotten(const std::vector<RecordFile>& files) {
  const int64_t now_ns = SystemClock::Nanoseconds(), realtime_ns = Realtime();
  for (const RecordFile& file : files) {
    // Where jobs were killed by the hundred, a look into each file would cost every start dearly.
    if (realtime_ns - file.changed_ns < kForgetAfterNs) continue;
    if (ProcessStart(file.pid) != 0 || now_ns - LastSign(file.path) < kForgetAfterNs) continue;
    unlink(file.path.c_str());
  }
}

// Removes the files of those processes that are gone longest, while there are more than `limit`
// bytes of files of processes that are gone. Looks at sizes alone where all files are less.
void RemoveBeyond(int64_t limit, std::vector<RecordFile> files) {
  const auto total = [&files] {
    int64_t bytes = 0;
    for (const RecordFile& file : files) bytes += file.bytes;
    return bytes;
  };
  if (total() <= limit) return;
  // A later process may have the number of one that is gone, whose file then stays for its hour.
  std::erase_if(files, [](const RecordFile& file) {
    return kill(static_cast<pid_t>(file.pid), 0) == 0 || errno != ESRCH;
  });
  int64_t dead = total();
  if (dead <= limit) return;
  std::vector<std::pair<int64_t, const RecordFile*>> by_sign;
  by_sign.reserve(files.size());
  for (const RecordFile& file : files) by_sign.emplace_back(LastSign(file.path), &file);
  std::sort(by_sign.begin(), by_sign.end());
  for (const auto& [sign, file] : by_sign) {
    if (dead <= limit) return;
    unlink(file->path.c_str());
    dead -= file->bytes;
  }
}

// Bytes that the files of processes that are gone may have together: a container may have 64 MiB of
// shared memory for everybody.
int64_t DeadBytesMax(const std::string& folder, Bytes wanted) {
  constexpr int64_t kShareOfFileSystem = 8;
  struct statvfs system {};
  if (statvfs(folder.c_str(), &system) != 0) return wanted.count();
  const auto size = static_cast<int64_t>(system.f_blocks * system.f_frsize);
  return std::min(wanted.count(), size / kShareOfFileSystem);
}

}  // namespace

uint64_t ProcessStart(int64_t pid) {
  const std::string line = FirstLine(absl::StrCat("/proc/", pid, "/stat"));
  const size_t close = line.rfind(')');  // a name may hold anything
  if (close == std::string::npos) return 0;
  const std::vector<std::string> fields = absl::StrSplit(line.substr(close + 1), ' ');
  uint64_t start = 0;
  return fields.size() > 20 && absl::SimpleAtoi(fields[20], &start) ? start : 0;
}

std::string DefaultRecordFolder() {
  if (access("/dev/shm", W_OK) == 0) return absl::StrCat("/dev/shm/weft-", geteuid());
  const char* run = std::getenv("XDG_RUNTIME_DIR");
  if (run != nullptr && *run != '\0') return absl::StrCat(run, "/weft");
  return absl::StrCat("/tmp/weft-", geteuid());
}

absl::StatusOr<std::unique_ptr<Records>> Records::Open(const RecordOptions& options) {
  const std::string folder = options.folder.empty() ? DefaultRecordFolder() : options.folder;
  WEFT_RETURN_IF_ERROR(OwnFolder(folder));
  if (IsDue(folder, kSearched, kSearchEveryNs)) RemoveForgotten(FilesOf(folder));
  static std::atomic<int> number{0};  // a process may have several
  const int own = number.fetch_add(1);
  const std::string path =
      absl::StrCat(folder, "/", Plain(options.job), "-", options.rank,
                   own == 0 ? "" : absl::StrCat(".", own), "-", getpid(), ".weft");
  uint64_t capacity = 64;
  while (2 * capacity * sizeof(RecordSlot) <= static_cast<uint64_t>(options.bytes.count())) {
    capacity *= 2;
  }
  const size_t bytes = RecordFileHeader::kBytes + capacity * sizeof(RecordSlot);
  const std::string doing = absl::StrCat("make the file of records ", path);
  unlink(path.c_str());  // of an earlier process of this number
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return ErrnoStatus(errno, doing);
  const int error = TakeRoom(fd, bytes);
  void* const memory =
      error != 0 ? MAP_FAILED : mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const int map_error = errno;
  close(fd);
  if (memory == MAP_FAILED) {
    unlink(path.c_str());
    return ErrnoStatus(error != 0 ? error : map_error, doing);
  }
  auto* const header = new (memory) RecordFileHeader;
  header->capacity = capacity;
  header->rank = options.rank;
  header->world_size = options.world_size;
  header->pid = getpid();
  header->process_start = ProcessStart(getpid());
  header->monotonic_ns = SystemClock::Nanoseconds();
  header->realtime_ns = Realtime();
  header->alive_ns = header->monotonic_ns;
  CopyText(options.job, header->job);
  CopyText(HostName(), header->host);
  CopyText(FirstLine("/proc/self/comm"), header->program);
  std::atomic_ref(header->magic).store(RecordFileHeader::kMagic, std::memory_order_release);
  return std::unique_ptr<Records>(new Records(path, header, bytes, options.keep));
}

std::unique_ptr<Records> Records::FromSettings(const Settings& settings, absl::string_view job,
                                               int rank, int world_size) {
  if (!settings.Bool("records.enabled")) return nullptr;
  RecordOptions options;
  options.folder = settings.Text("records.folder");
  options.job = std::string(job);
  options.rank = rank;
  options.world_size = world_size;
  options.bytes = settings.ByteCount("records.bytes");
  options.keep = settings.Bool("records.keep");
  if (options.folder.empty()) options.folder = DefaultRecordFolder();
  // What this process has counted itself does not stop it from counting again.
  static std::atomic<bool> has_counted{false};
  if (OwnFolder(options.folder).ok() &&
      (IsDue(options.folder, kCounted, kCountEveryNs) || has_counted.load())) {
    has_counted.store(true);
    RemoveBeyond(DeadBytesMax(options.folder, settings.ByteCount("records.dead_bytes")),
                 FilesOf(options.folder));
  }
  absl::StatusOr<std::unique_ptr<Records>> records = Open(options);
  if (records.ok()) return *std::move(records);
  WEFT_LOG_WARN("no records of this process: ", records.status().message());
  return nullptr;
}

Records::Records(std::string path, RecordFileHeader* header, size_t bytes, bool keep)
    : path_(std::move(path)),
      header_(header),
      slots_(reinterpret_cast<RecordSlot*>(reinterpret_cast<std::byte*>(header) +
                                           RecordFileHeader::kBytes)),
      mask_(header->capacity - 1),
      bytes_(bytes),
      keep_(keep),
      owner_pid_(header->pid) {}

Records::~Records() {
  if (getpid() == owner_pid_) {
    header_->ended_ns.store(SystemClock::Nanoseconds(), std::memory_order_release);
    if (!keep_ && header_->failed.load(std::memory_order_relaxed) == 0) unlink(path_.c_str());
  }
  munmap(header_, bytes_);
}

RecordName Records::Name(absl::string_view name) {
  std::lock_guard<std::mutex> lock(mutex_);
  const std::string shortened(name.substr(0, RecordFileHeader::kNameBytes - 1));
  if (const auto found = names_.find(shortened); found != names_.end()) return found->second;
  const uint32_t used = header_->names.load(std::memory_order_relaxed);
  if (used + 1 >= RecordFileHeader::kNames) return 0;
  std::memcpy(header_->name[used + 1], shortened.data(), shortened.size());
  header_->names.store(used + 1, std::memory_order_release);
  return names_[shortened] = static_cast<RecordName>(used + 1);
}

bool Records::Say(absl::string_view line) {
  std::lock_guard<std::mutex> lock(mutex_);
  const uint32_t used = header_->text_bytes.load(std::memory_order_relaxed);
  if (used + line.size() + 1 > RecordFileHeader::kTextBytes) return false;
  std::memcpy(header_->text + used, line.data(), line.size());
  header_->text[used + line.size()] = '\n';
  header_->text_bytes.store(used + static_cast<uint32_t>(line.size()) + 1,
                            std::memory_order_release);
  return true;
}

void Records::Put(const RecordWords& words) {
  const uint64_t number = header_->next.fetch_add(1, std::memory_order_relaxed);
  RecordSlot& slot = slots_[number & mask_];
  slot.sequence.store(2 * number + 1, std::memory_order_relaxed);
  std::atomic_thread_fence(std::memory_order_release);
  for (size_t i = 0; i < kRecordWords; ++i) {
    slot.words[i].store(words[i], std::memory_order_relaxed);
  }
  slot.sequence.store(2 * number + 2, std::memory_order_release);
}

RecordName Records::SetPhase(RecordName phase, int64_t now_ns) {
  header_->phase_since_ns.store(now_ns, std::memory_order_relaxed);
  return static_cast<RecordName>(header_->phase.exchange(phase, std::memory_order_relaxed));
}

PhaseScope::PhaseScope(Records* records, RecordName name, int64_t step) : records_(records) {
  if (records_ == nullptr) return;
  record_.name = name;
  record_.step = step;
  record_.start_ns = SystemClock::Nanoseconds();
  before_ = records_->SetPhase(name, record_.start_ns);
}

PhaseScope::~PhaseScope() {
  if (records_ == nullptr) return;
  record_.end_ns = SystemClock::Nanoseconds();
  records_->Write(record_);
  records_->SetPhase(before_, record_.end_ns);
}

}  // namespace weft
