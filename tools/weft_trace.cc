// weft-trace: the records of a job's ranks and hosts, as one picture.
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/command_line.h"
#include "tools/observe/source.h"
#include "tools/observe/timeline.h"

namespace weft {
namespace {

struct Command {
  observe::Source source;
  std::string html, perfetto, chrome, flight_recorder;

  bool wants_any() const {
    return !(html.empty() && perfetto.empty() && chrome.empty() && flight_recorder.empty());
  }

  absl::Status Write(const std::string& path, const std::string& text, const char* what) const {
    if (path.empty()) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(WriteFile(path, text));
    std::printf("%s: %s\n", path.c_str(), what);
    return absl::OkStatus();
  }

  absl::Status WriteFlightRecorder(const observe::Timeline& timeline) const {
    if (flight_recorder.empty()) return absl::OkStatus();
    if (mkdir(flight_recorder.c_str(), 0777) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, absl::StrCat("make the folder ", flight_recorder));
    }
    for (const observe::TimelineRank& rank : timeline.ranks) {
      WEFT_RETURN_IF_ERROR(WriteFile(absl::StrCat(flight_recorder, "/rank_", rank.rank),
                                     observe::FlightRecorderDump(timeline, rank)));
    }
    std::printf("%s: %zu dumps; torchfrtrace %s reads them\n", flight_recorder.c_str(),
                timeline.ranks.size(), flight_recorder.c_str());
    return absl::OkStatus();
  }

  absl::Status Run() {
    WEFT_RETURN_IF_ERROR(source.Update());
    WEFT_ASSIGN_OR_RETURN(const observe::Timeline timeline,
                          observe::ReadTimeline(source.view(), source.files()));
    WEFT_RETURN_IF_ERROR(
        Write(html, observe::HtmlPage(timeline, source.view(), observe::Diagnose(source.view())),
              "open it in a browser"));
    WEFT_RETURN_IF_ERROR(
        Write(perfetto, observe::PerfettoTrace(timeline), "open it in ui.perfetto.dev"));
    WEFT_RETURN_IF_ERROR(Write(chrome, observe::ChromeTrace(timeline), "Chrome's JSON"));
    WEFT_RETURN_IF_ERROR(WriteFlightRecorder(timeline));
    for (const observe::TimelineRank& rank : timeline.ranks) {
      if (rank.lost == 0) continue;
      std::fprintf(stderr,
                   "weft-trace: rank %d: %llu older records were overwritten; a larger "
                   "records.bytes holds more\n",
                   rank.rank, static_cast<unsigned long long>(rank.lost));
    }
    return absl::OkStatus();
  }
};

int Main(int argc, char** argv) {
  CLI::App app(
      "Merges what the ranks of a job recorded on one estimated clock and writes it as a page "
      "with\n"
      "timeline and heat map, for Perfetto, as Chrome's JSON, or as dumps of PyTorch's Flight\n"
      "Recorder. While the job runs, after it failed, or after it ended with records.keep=true.\n"
      "Example: weft-trace --html trace.html --perfetto trace.pftrace",
      "weft-trace");
  Command command;
  command.source.Register(app);
  app.add_option("--html", command.html, "page for a browser, one file");
  app.add_option("--perfetto", command.perfetto, "TrackEvent protobuf");
  app.add_option("--chrome", command.chrome, "JSON of chrome://tracing");
  app.add_option("--flight-recorder", command.flight_recorder,
                 "folder for rank_0, rank_1, ..., which torchfrtrace analyses");
  const int status_of_usage = ReadCommandLine(app, argc, argv, [&] {
    return command.wants_any()
               ? absl::OkStatus()
               : absl::InvalidArgumentError(
                     "what to write? --html, --perfetto, --chrome or --flight-recorder");
  });
  if (status_of_usage != kGoOn) return status_of_usage;
  const absl::Status status = command.Run();
  if (status.ok()) return 0;
  std::fprintf(stderr, "weft-trace: %s\n", std::string(status.message()).c_str());
  return 1;
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) { return weft::Main(argc, argv); }
