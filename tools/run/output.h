// What ranks write: into log files, and on to the launcher's own output, line by line with a
// prefix, or untouched for one rank that draws a progress bar.
//
// Nothing here blocks: what the launcher's reader does not take stays pending, and the launcher
// stops reading from the ranks while there is much of that.
#ifndef WEFT_TOOLS_RUN_OUTPUT_H_
#define WEFT_TOOLS_RUN_OUTPUT_H_

#include <array>
#include <cstddef>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/file_descriptor.h"

namespace weft::run {

enum class Stream : int { kOutput = 0, kError = 1 };

// The launcher's standard output and error.
class Terminal {
 public:
  Terminal();
  bool is_terminal(Stream stream) const { return sinks_[Index(stream)].terminal; }
  // A whole line, without its end. Where a raw line stands unfinished, the new one goes above it on
  // a terminal, and below it elsewhere.
  void Line(Stream stream, absl::string_view prefix, absl::string_view line);
  void Raw(Stream stream, absl::string_view bytes);

  void Flush();  // as much as goes without blocking
  bool pending() const { return !sinks_[0].pending.empty() || !sinks_[1].pending.empty(); }
  // Output was lost although there is somebody, or a file, to take it: a full disk.
  bool lost() const { return sinks_[0].loss != 0 || sinks_[1].loss != 0; }
  std::vector<std::string> TakeLosses();  // what is to be said of that, once
  bool congested() const;  // so much is pending that nobody should read more from the ranks
  // For poll(): where something is pending.
  std::vector<int> WaitingFor() const;

 private:
  struct Sink {
    int fd = -1;
    bool terminal = false;
    bool unfinished = false;  // no terminal, and Raw() has left a line without its end
    int loss = 0;             // errno of the first write that lost output; 0: none has
    bool loss_told = false;
    std::string pending;
  };
  static size_t Index(Stream stream) { return static_cast<size_t>(stream); }
  static void FlushSink(Sink& sink);

  std::array<Sink, 2> sinks_;
  std::string unfinished_;  // what Raw() left on the terminal's last line
};

enum class Style {
  kNone,   // the log alone
  kLines,  // whole lines with the prefix
  kRaw,    // as it comes
};

// One rank's output.
class RankOutput {
 public:
  RankOutput(Terminal* terminal, std::string prefix, std::array<Style, 2> styles);
  // Appends to what is there.
  absl::Status OpenLog(const std::string& path);

  void Feed(Stream stream, absl::string_view bytes);
  void Finish();  // a last line without an end is a line too
  // The last lines of both streams, as a terminal would show them.
  std::vector<std::string> LastLines() const;
  // The last lines that look like errors: with words as "error", "failed", "exception".
  std::vector<std::string> ErrorLines() const;
  // The last lines that say where the time of a recovery went, as weft-train's first rank writes
  // them: "rank 2 (generation 1) is back 109 ms after its end was seen: ...".
  std::vector<std::string> RecoveryLines() const;
  // The lines that come next are another process's. Those of recoveries are the job's.
  void ForgetLines() {
    tail_.clear();
    errors_.clear();
  }

 private:
  void Line(Stream stream, absl::string_view line);

  Terminal* terminal_;
  std::string prefix_;
  std::array<Style, 2> styles_;
  std::array<std::string, 2> partial_;
  FileDescriptor log_;
  std::string log_path_;
  std::deque<std::string> tail_, errors_, recoveries_;
};

}  // namespace weft::run

#endif  // WEFT_TOOLS_RUN_OUTPUT_H_
