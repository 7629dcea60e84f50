#include "trainer/loop/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "base/clock.h"

namespace weft::train {
namespace {

constexpr int kBarWidth = 24;
constexpr absl::Duration kLineEvery = absl::Seconds(5);
constexpr absl::Duration kRedrawEvery = absl::Milliseconds(100);

}  // namespace

Progress::Progress(const TrainConfig& config, int64_t first_step)
    : steps_(config.steps),
      every_(config.log_every),
      bar_(config.progress_mode == "bar" ||
           (config.progress_mode == "auto" && isatty(STDERR_FILENO) != 0)),
      first_step_(first_step),
      start_(SystemClock().Now()) {}

void Progress::Step(const StepMetrics& metrics) {
  if (metrics.validation) validation_loss_ = metrics.validation->mean;
  absl::Time now = SystemClock().Now();
  bool is_last = metrics.step == steps_;
  bool due = bar_         ? now - last_ >= kRedrawEvery
             : every_ > 0 ? metrics.step % every_ == 0
                          : now - last_ >= kLineEvery;
  if (!due && !is_last) return;
  last_ = now;
  double done = static_cast<double>(metrics.step - first_step_);
  absl::Duration left = done > 0
                            ? (now - start_) / done * static_cast<double>(steps_ - metrics.step)
                            : absl::ZeroDuration();
  std::string text = absl::StrFormat(
      "step %d/%d  loss %.4f%s  %.0f tokens/s  communication exposed %.1f%%  %s left", metrics.step,
      steps_, metrics.loss,
      validation_loss_ > 0 ? absl::StrFormat("  val %.4f", validation_loss_) : "",
      metrics.tokens_per_second, 100 * metrics.exposed.total() / metrics.step_seconds,
      absl::FormatDuration(absl::Trunc(left, absl::Seconds(1))));
  if (bar_) {
    int filled = static_cast<int>(kBarWidth * metrics.step / std::max<int64_t>(1, steps_));
    absl::FPrintF(stderr, "\r\x1b[K[%s%s] %s", std::string(filled, '='),
                  std::string(kBarWidth - filled, ' '), text);
    drawn_ = true;
  } else {
    absl::FPrintF(stderr, "%s\n", text);
  }
  std::fflush(stderr);
}

void Progress::Note(absl::string_view line) {
  absl::FPrintF(stderr, drawn_ ? "\r\x1b[K%s\n" : "%s\n", line);
  std::fflush(stderr);
}

void Progress::Finish() {
  if (drawn_) absl::FPrintF(stderr, "\n");
  drawn_ = false;
}

}  // namespace weft::train
