#include "tools/bw/link/link_command.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "base/write_file.h"
#include "tools/bw/link/command_line.h"
#include "tools/bw/link/flows.h"
#include "tools/bw/link/measurement.h"
#include "tools/bw/link/options.h"
#include "tools/bw/link/report.h"
#include "tools/job/job.h"

namespace weft::link_bw {
namespace {

constexpr int kUsage = 2, kLimitMissed = 3;

// One line on a terminal, in the place of the last.
class ProgressLine {
 public:
  ProgressLine(bool wanted, const Load& load, size_t steps)
      : wanted_(wanted && isatty(STDERR_FILENO) != 0 && steps > 1),
        left_(steps),
        each_(load.iterations > 0 ? absl::ZeroDuration() : load.duration * 1.4) {}
  void Next(Bytes size) {
    if (!wanted_) return;
    absl::FPrintF(stderr, "\r\033[K%s; %d to go", weft::ToString(size), left_);
    if (each_ > absl::ZeroDuration()) {
      absl::FPrintF(stderr, ", %.0f s left",
                    absl::ToDoubleSeconds(each_) * static_cast<double>(left_));
    }
    --left_;
  }
  void Clear() const {
    if (wanted_) absl::FPrintF(stderr, "\r\033[K");
  }

 private:
  const bool wanted_;
  size_t left_;
  const absl::Duration each_;
};

class Printer final : public MeasurementObserver {
 public:
  explicit Printer(const Options& options) : options_(options) {}

  void OnBegin(const Load& load, int ranks, bool speaks, size_t rows,
               const std::string& links) override {
    options_.load = load;
    report_.emplace(options_, ranks, !speaks);
    progress_.emplace(speaks, load, rows);
    report_->Begin(links);
  }
  void OnSize(Bytes size) override { progress_->Next(size); }
  void OnRow(const Row& row, bool last) override {
    progress_->Clear();
    report_->Add(row, last);
  }

  absl::StatusOr<int> End() {
    WEFT_RETURN_IF_ERROR(report_->End());
    if (report_->wrong() > 0) return EXIT_FAILURE;
    return report_->limits_kept() ? EXIT_SUCCESS : kLimitMissed;
  }

 private:
  Options options_;
  std::optional<Report> report_;
  std::optional<ProgressLine> progress_;
};

absl::StatusOr<int> RunRank(const Options& options) {
  Printer printer(options);
  WEFT_RETURN_IF_ERROR(MeasureLinks(options, printer));
  return printer.End();
}

absl::StatusOr<int> Start(const Options& options, int argc, char** argv) {
  if (options.ranks == 0) return RunRank(options);
  // Before the ranks start, of which the first writes the file.
  WEFT_RETURN_IF_ERROR(FlowsOf(options.load, options.ranks).status());
  WEFT_RETURN_IF_ERROR(CheckOutput(options.json));
  return job::BecomeLauncher(options.ranks, argc, argv);
}

}  // namespace

int RunLinkCommand(int argc, char** argv) {
  Parsed parsed = ParseCommandLine(argc - 1, argv + 1);
  if (parsed.exit_status >= 0) return parsed.exit_status;
  const absl::StatusOr<int> status = Start(parsed.options, argc, argv);
  if (status.ok()) return *status;
  absl::FPrintF(stderr, "weft-bw link: %s\n", std::string(status.status().message()));
  return absl::IsInvalidArgument(status.status()) ? kUsage : EXIT_FAILURE;
}

}  // namespace weft::link_bw
