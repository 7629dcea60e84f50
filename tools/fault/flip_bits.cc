#include "tools/fault/flip_bits.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"

namespace weft::fault {
namespace {

struct Range {
  uint64_t begin = 0, end = 0;
};

constexpr uint64_t kLeastBytes = uint64_t{256} << 10;
constexpr uint32_t kBit = 1U << 22;
// Words in a row that are read for one flip.
constexpr size_t kWords = 64;

std::vector<Range> MemoryOf(pid_t pid) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  std::vector<Range> ranges;
  for (std::string line; std::getline(maps, line);) {
    unsigned long long begin = 0, end = 0, inode = 0;
    char rights[5] = {};
    if (std::sscanf(line.c_str(), "%llx-%llx %4s %*s %*s %llu", &begin, &end, rights, &inode) != 4)
      continue;
    const bool is_stack = absl::StrContains(line, "[stack");
    if (std::strncmp(rights, "rw-p", 4) != 0 || inode != 0 || is_stack) continue;
    if (end - begin >= kLeastBytes) ranges.push_back({begin, end});
  }
  return ranges;
}

iovec There(uint64_t address, size_t size) {
  // An address in the other process. NOLINTNEXTLINE(performance-no-int-to-ptr)
  return {reinterpret_cast<void*>(address), size};
}

// Whether a bit was flipped there. kPermissionDenied as FlipBits().
absl::StatusOr<bool> FlipNear(pid_t pid, uint64_t address) {
  uint32_t words[kWords];
  iovec here{words, sizeof(words)};
  iovec there = There(address, sizeof(words));
  const ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);
  if (got < 0 && errno == EPERM) return ErrnoStatus(errno, "read the program's memory");
  for (size_t i = 0; got > 0 && i < static_cast<size_t>(got) / sizeof(uint32_t); ++i) {
    float value = 0;
    std::memcpy(&value, &words[i], sizeof(value));
    if (!(std::abs(value) > 1e-5F && std::abs(value) < 1e2F)) continue;
    words[i] ^= kBit;
    here = {&words[i], sizeof(uint32_t)};
    there = There(address + i * sizeof(uint32_t), sizeof(uint32_t));
    return process_vm_writev(pid, &here, 1, &there, 1, 0) > 0;
  }
  return false;
}

}  // namespace

absl::StatusOr<int> FlipBits(const FlipOptions& options) {
  std::vector<char*> arguments;
  std::vector<std::string> words = options.command;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    execvp(arguments[0], arguments.data());
    std::perror(arguments[0]);
    _exit(127);
  }
  std::mt19937_64 random(options.seed);
  int64_t flipped = 0;
  absl::Status problem;
  int status = 0;
  while (waitpid(pid, &status, WNOHANG) == 0) {
    absl::SleepFor(options.every);
    const std::vector<Range> ranges = MemoryOf(pid);
    for (int i = 0; i < options.flips && !ranges.empty() && problem.ok(); ++i) {
      const Range& range = ranges[random() % ranges.size()];
      const uint64_t span = (range.end - range.begin) / sizeof(uint32_t) - kWords;
      const absl::StatusOr<bool> done =
          FlipNear(pid, range.begin + (random() % span) * sizeof(uint32_t));
      if (!done.ok()) problem = done.status();
      if (done.ok() && *done) ++flipped;
    }
  }
  if (!problem.ok()) return problem;
  std::fprintf(stderr, "weft-fault: flipped %lld bits\n", static_cast<long long>(flipped));
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

}  // namespace weft::fault
