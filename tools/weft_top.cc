// weft-top: a job as it runs, in a terminal.
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tools/command_line.h"
#include "tools/observe/source.h"
#include "tools/observe/table.h"

namespace weft {
namespace {

size_t TerminalRows() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_row < 16) return 16;
  return size.ws_row - 12u;  // the heading, and a finding
}

int Main(int argc, char** argv) {
  CLI::App app(
      "Shows a job while it runs: what each rank does, its step, phase, the part of its time in\n"
      "which it waits for communication, and which rank is slow or holds up the others.\n"
      "Example: weft-top          Ctrl-C ends it.",
      "weft-top");
  observe::Source source;
  source.Register(app);
  bool once = false, json = false;
  std::string every = "1s";
  absl::Duration period;
  app.add_flag("--once", once, "print once and end");
  app.add_flag("--json", json, "one line of JSON each time");
  app.add_option("--every", every, "time between two prints")->capture_default_str();
  const int status_of_usage = ReadCommandLine(app, argc, argv, [&] {
    return ParseFinite(every, &period) && period >= absl::Milliseconds(50)
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     absl::StrCat("--every ", every, " is no duration of 50ms or more"));
  });
  if (status_of_usage != kGoOn) return status_of_usage;
  const bool draws = !once && !json && isatty(STDOUT_FILENO) != 0;
  while (true) {
    if (absl::Status status = source.Update(); !status.ok()) {
      std::fprintf(stderr, "weft-top: %s\n", std::string(status.message()).c_str());
      return 1;
    }
    const observe::JobView& view = source.view();
    const std::vector<observe::Finding> findings = observe::Diagnose(view);
    const std::string text =
        json ? absl::StrCat(observe::JobJson(view, findings, source.received()), "\n")
             : observe::JobTable(view, findings, draws ? TerminalRows() : 0);
    std::printf("%s%s", draws ? "\033[H\033[2J" : "", text.c_str());
    if (std::fflush(stdout) != 0) return 1;
    if (once) return 0;
    absl::SleepFor(period);
  }
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
