#include "tools/observe/kernel_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <limits>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace weft::observe {
namespace {

// What stands between the two, or up to the end; empty: `before` is not there.
absl::string_view Between(absl::string_view text, absl::string_view before,
                          absl::string_view any_of_these) {
  const size_t at = text.find(before);
  if (at == absl::string_view::npos) return "";
  text.remove_prefix(at + before.size());
  return text.substr(0, text.find_first_of(any_of_these));
}

template <typename Number>
Number NumberAfter(absl::string_view text, absl::string_view before) {
  Number number = 0;
  absl::string_view digits = Between(text, before, " ,;:()");
  digits = absl::StripSuffix(absl::StripPrefix(digits, "'"), "'");
  return absl::SimpleAtoi(digits, &number) ? number : 0;
}

// "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=weft-train, GPU has fallen off the bus."
// XIDs that a program's own mistakes cause (NVIDIA, XID Errors, table 1) have another name.
std::optional<KernelTrouble> Xid(absl::string_view text) {
  if (!absl::StrContains(text, "NVRM: Xid")) return std::nullopt;
  constexpr std::array<int, 5> kOfPrograms = {13, 31, 43, 45, 68};
  KernelTrouble trouble{.source = absl::StrCat("gpu/", Between(text, "(PCI:", ")"))};
  trouble.number = NumberAfter<int>(text, "): ");
  if (trouble.number <= 0) return std::nullopt;
  trouble.process = NumberAfter<int64_t>(text, "pid=");
  trouble.name =
      std::find(kOfPrograms.begin(), kOfPrograms.end(), trouble.number) == kOfPrograms.end()
          ? "xid"
          : "program_xid";
  return trouble;
}

// "mlx5_core 0000:08:00.0: health poll failed", "NETDEV WATCHDOG: eth0 (ice): transmit queue 3
// timed out". Links that go down and up are counted by the kernel itself.
std::optional<KernelTrouble> Nic(absl::string_view text) {
  if (absl::StrContains(text, "NETDEV WATCHDOG: ")) {
    return KernelTrouble{.source = absl::StrCat("nic/", Between(text, "NETDEV WATCHDOG: ", " ")),
                         .name = "errors"};
  }
  if (!absl::StartsWith(text, "mlx5_core ")) return std::nullopt;
  for (const char* sign : {"health", "Fatal", "fatal", "firmware internal error", "recovery flow",
                           "Internal error detected", "device's health compromised"}) {
    if (absl::StrContains(text, sign)) {
      absl::string_view device = Between(text, "mlx5_core ", " ");
      return KernelTrouble{.source = absl::StrCat("nic/", absl::StripSuffix(device, ":")),
                           .name = "errors"};
    }
  }
  return std::nullopt;
}

// "blk_update_request: I/O error, dev sda, sector 8", "Buffer I/O error on dev dm-0, logical block
// 3", "EXT4-fs error (device sda1): ...", "XFS (nvme0n1p2): metadata I/O error", "nvme nvme0: I/O
// 12 QID 3 timeout", "nfs: server files not responding, still trying".
std::optional<KernelTrouble> Disk(absl::string_view text) {
  absl::string_view device;
  if (absl::StrContains(text, "I/O error")) {
    device = Between(text, ", dev ", " ,");
    if (device.empty()) device = Between(text, "on dev ", " ,");
    if (device.empty()) device = Between(text, "XFS (", ")");
    if (device.empty()) return std::nullopt;
  } else if (absl::StrContains(text, "-fs error (device ")) {
    device = Between(text, "-fs error (device ", ")");
  } else if (absl::StartsWith(text, "nvme ") && absl::StrContains(text, " timeout")) {
    device = absl::StripSuffix(Between(text, "nvme ", " "), ":");
  } else if (absl::StartsWith(text, "nfs: server ") && absl::StrContains(text, "not responding")) {
    device = Between(text, "nfs: server ", " ");
  } else {
    return std::nullopt;
  }
  return KernelTrouble{.source = absl::StrCat("disk/", device), .name = "errors"};
}

// "Out of memory: Killed process 4711 (weft-train) ...", "Memory cgroup out of memory: Killed
// process ...".
std::optional<KernelTrouble> OutOfMemory(absl::string_view text) {
  const int64_t process = NumberAfter<int64_t>(text, "ut of memory: Killed process ");
  if (process == 0) return std::nullopt;
  return KernelTrouble{.source = "kernel", .name = "oom_kill", .process = process};
}

// "EDAC MC0: 1 UE ...", "mce: [Hardware Error]: ... Uncorrected", "Memory failure: 0x1234: ...",
// "watchdog: BUG: soft lockup - CPU#3 stuck for 23s", "rcu: INFO: rcu_sched self-detected stall".
std::optional<KernelTrouble> Host(absl::string_view text) {
  const bool counts_uncorrected =
      absl::StartsWith(text, "EDAC MC") && absl::StrContains(text, " UE ");
  if (counts_uncorrected || absl::StartsWith(text, "Memory failure: 0x")) {
    return KernelTrouble{.source = "memory", .name = "errors"};
  }
  if (absl::StrContains(text, "[Hardware Error]") && absl::StrContains(text, "Uncorrected")) {
    return KernelTrouble{.source = "cpu", .name = "errors"};
  }
  if (absl::StrContains(text, "soft lockup - CPU") || absl::StrContains(text, "hard LOCKUP") ||
      absl::StrContains(text, "self-detected stall on CPU")) {
    return KernelTrouble{.source = "cpu", .name = "lockups"};
  }
  return std::nullopt;
}

}  // namespace

std::optional<KernelMessage> ParseKernelRecord(absl::string_view line) {
  const size_t end = line.find(';');
  if (end == absl::string_view::npos || line[0] == ' ') return std::nullopt;
  const std::vector<absl::string_view> fields = absl::StrSplit(line.substr(0, end), ',');
  int64_t us = 0;
  if (fields.size() < 4 || !absl::SimpleAtoi(fields[2], &us) || us < 0 ||
      us > std::numeric_limits<int64_t>::max() / 1000) {
    return std::nullopt;
  }
  return KernelMessage{.time_ns = us * 1000, .text = std::string(line.substr(end + 1))};
}

std::optional<KernelTrouble> ParseKernelTrouble(absl::string_view text) {
  for (const auto& kind : {Xid, Nic, Disk, OutOfMemory, Host}) {
    if (std::optional<KernelTrouble> trouble = kind(text)) return trouble;
  }
  return std::nullopt;
}

std::vector<KernelMessage> KernelLog::Read() {
  if (!file_ && !refused_) {
    file_ = FileDescriptor(open(path_.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    refused_ = !file_;
  }
  std::vector<KernelMessage> messages;
  std::array<char, 8192> bytes;  // the longest record that the kernel gives
  while (file_ && messages.size() < kMessagesMax) {
    const ssize_t got = read(file_.get(), bytes.data(), bytes.size());
    if (got < 0 && (errno == EPIPE || errno == EINTR)) continue;  // EPIPE: the next was overwritten
    if (got <= 0) break;
    rest_.append(bytes.data(), static_cast<size_t>(got));
    for (size_t end; (end = rest_.find('\n')) != std::string::npos; rest_.erase(0, end + 1)) {
      if (auto message = ParseKernelRecord(absl::string_view(rest_).substr(0, end))) {
        messages.push_back(*std::move(message));
      }
    }
    if (rest_.size() > bytes.size()) rest_.clear();
  }
  return messages;
}

}  // namespace weft::observe
