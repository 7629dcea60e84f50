#include "tools/run/output.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace weft::run {
namespace {

constexpr size_t kCongested = size_t{1} << 20;
// A pipe that poll() calls writable takes this much without blocking (PIPE_BUF).
constexpr size_t kWriteBytes = 4096;
constexpr size_t kTailLines = 10;
constexpr size_t kErrorLines = 5;
constexpr size_t kRecoveryLines = 10;
constexpr size_t kTailLineBytes = 400;
constexpr size_t kLineBytesMax = size_t{64} << 10;

constexpr absl::string_view kEraseLine = "\r\x1b[K";

// What a terminal would show of a line that was drawn again and again.
absl::string_view LastDrawn(absl::string_view line) {
  while (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  size_t start = line.rfind('\r');
  if (start != absl::string_view::npos) line.remove_prefix(start + 1);
  return line;
}

bool LooksLikeError(absl::string_view line) {
  const std::string lower = absl::AsciiStrToLower(line);
  for (const char* word : {"error", "fail", "fatal", "exception", "traceback", "out of memory",
                           "segmentation", "abort", "assert", "is gone", "timed out"}) {
    if (absl::StrContains(lower, word)) return true;
  }
  return false;
}

bool TellsRecovery(absl::string_view line) {
  return absl::StartsWith(line, "rank ") && absl::StrContains(line, " is back ") &&
         absl::StrContains(line, " ms after its end was seen: ");
}

}  // namespace

Terminal::Terminal() {
  sinks_[0].fd = STDOUT_FILENO;
  sinks_[1].fd = STDERR_FILENO;
  for (Sink& sink : sinks_) sink.terminal = isatty(sink.fd) != 0;
}

void Terminal::Line(Stream stream, absl::string_view prefix, absl::string_view line) {
  Sink& sink = sinks_[Index(stream)];
  bool above = sink.terminal && !unfinished_.empty();
  if (above) absl::StrAppend(&sink.pending, kEraseLine);
  if (std::exchange(sink.unfinished, false)) sink.pending += '\n';
  absl::StrAppend(&sink.pending, prefix, line, "\n");
  if (above) absl::StrAppend(&sink.pending, unfinished_);
  Flush();
}

void Terminal::Raw(Stream stream, absl::string_view bytes) {
  Sink& sink = sinks_[Index(stream)];
  absl::StrAppend(&sink.pending, bytes);
  if (sink.terminal) {
    size_t end = bytes.find_last_of("\n\r");
    if (end == absl::string_view::npos) {
      absl::StrAppend(&unfinished_, bytes);
    } else {
      unfinished_ = std::string(bytes.substr(end + 1));
    }
    if (unfinished_.size() > kLineBytesMax) unfinished_.clear();
  } else if (!bytes.empty()) {
    sink.unfinished = bytes.back() != '\n';
  }
  Flush();
}

void Terminal::FlushSink(Sink& sink) {
  size_t done = 0;
  while (done < sink.pending.size()) {
    pollfd ready{sink.fd, POLLOUT, 0};
    if (poll(&ready, 1, 0) <= 0) break;
    ssize_t wrote = write(sink.fd, sink.pending.data() + done,
                          std::min(kWriteBytes, sink.pending.size() - done));
    if (wrote < 0 && (errno == EINTR || errno == EAGAIN)) break;
    // The ranks go on, and this much of their output goes nowhere but to the logs.
    if (wrote < 0) {
      const bool is_left = errno == EPIPE || errno == EIO;  // by its reader, or its terminal
      if (sink.loss == 0 && !is_left) sink.loss = errno;
      done = sink.pending.size();
    }
    if (wrote > 0) done += static_cast<size_t>(wrote);
  }
  sink.pending.erase(0, done);
}

void Terminal::Flush() {
  for (Sink& sink : sinks_) FlushSink(sink);
}

std::vector<std::string> Terminal::TakeLosses() {
  std::vector<std::string> lines;
  for (Sink& sink : sinks_) {
    if (sink.loss == 0 || std::exchange(sink.loss_told, true)) continue;
    const char* name = sink.fd == STDOUT_FILENO ? "standard output" : "standard error";
    lines.push_back(absl::StrCat(ErrnoStatus(sink.loss, absl::StrCat("write to ", name)).message(),
                                 "; the ranks go on, and what is not written is lost"));
  }
  return lines;
}

bool Terminal::congested() const {
  return sinks_[0].pending.size() > kCongested || sinks_[1].pending.size() > kCongested;
}

std::vector<int> Terminal::WaitingFor() const {
  std::vector<int> fds;
  for (const Sink& sink : sinks_) {
    if (!sink.pending.empty()) fds.push_back(sink.fd);
  }
  return fds;
}

RankOutput::RankOutput(Terminal* terminal, std::string prefix, std::array<Style, 2> styles)
    : terminal_(terminal), prefix_(std::move(prefix)), styles_(styles) {}

absl::Status RankOutput::OpenLog(const std::string& path) {
  log_path_ = path;
  log_ = FileDescriptor(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  return log_ ? absl::OkStatus() : ErrnoStatus(errno, absl::StrCat("open ", path));
}

void RankOutput::Feed(Stream stream, absl::string_view bytes) {
  auto index = static_cast<size_t>(stream);
  if (styles_[index] == Style::kRaw) terminal_->Raw(stream, bytes);
  for (absl::string_view rest = bytes; log_ && !rest.empty();) {
    ssize_t wrote = write(log_.get(), rest.data(), rest.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      terminal_->Line(
          Stream::kError, prefix_,
          absl::StrCat("its log is cut: ",
                       ErrnoStatus(errno, absl::StrCat("write ", log_path_)).message()));
      log_.Reset();
      break;
    }
    rest.remove_prefix(static_cast<size_t>(wrote));
  }
  std::string& partial = partial_[index];
  for (size_t end = bytes.find('\n'); end != absl::string_view::npos; end = bytes.find('\n')) {
    absl::StrAppend(&partial, bytes.substr(0, end));
    Line(stream, std::exchange(partial, {}));
    bytes.remove_prefix(end + 1);
  }
  absl::StrAppend(&partial, bytes);
  if (partial.size() > kLineBytesMax) Line(stream, std::exchange(partial, {}));
}

void RankOutput::Line(Stream stream, absl::string_view line) {
  if (styles_[static_cast<size_t>(stream)] == Style::kLines) {
    terminal_->Line(stream, prefix_, line);
  }
  tail_.emplace_back(LastDrawn(line).substr(0, kTailLineBytes));
  if (tail_.size() > kTailLines) tail_.pop_front();
  if (TellsRecovery(tail_.back())) {
    recoveries_.push_back(tail_.back());
    if (recoveries_.size() > kRecoveryLines) recoveries_.pop_front();
  }
  if (!LooksLikeError(tail_.back())) return;
  errors_.push_back(tail_.back());
  if (errors_.size() > kErrorLines) errors_.pop_front();
}

void RankOutput::Finish() {
  for (size_t index = 0; index < partial_.size(); ++index) {
    std::string line = std::exchange(partial_[index], {});
    if (line.empty()) continue;
    auto stream = static_cast<Stream>(index);
    Line(stream, line);
    if (styles_[index] == Style::kRaw && terminal_->is_terminal(stream)) {
      terminal_->Raw(stream, "\n");
    }
  }
}

std::vector<std::string> RankOutput::LastLines() const {
  return std::vector<std::string>(tail_.begin(), tail_.end());
}

std::vector<std::string> RankOutput::RecoveryLines() const {
  return std::vector<std::string>(recoveries_.begin(), recoveries_.end());
}

std::vector<std::string> RankOutput::ErrorLines() const {
  return std::vector<std::string>(errors_.begin(), errors_.end());
}

}  // namespace weft::run
