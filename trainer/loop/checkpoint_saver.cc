#include "trainer/loop/checkpoint_saver.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/status.h"

namespace weft::train {
namespace {

// Steps between checkpoints: more than any run has, and far from where numbers overflow.
constexpr double kLongestInterval = 1e15;

// Adds the time of its scope.
class Waiting {
 public:
  explicit Waiting(double& seconds) : seconds_(seconds) {}
  ~Waiting() { seconds_ += static_cast<double>(SystemClock::Nanoseconds() - start_) * 1e-9; }

 private:
  double& seconds_;
  const int64_t start_ = SystemClock::Nanoseconds();
};

}  // namespace

absl::Status CheckpointSaver::CheckLock() const {
  return options_.lock == nullptr ? absl::OkStatus() : options_.lock->Check();
}

absl::Status CheckpointSaver::SaveAfter(const RunPosition& position, ParameterSets& parameters,
                                        absl::Duration mean_step) {
  return options_.background ? BeginSave(position, parameters, mean_step)
                             : Save(position, parameters, mean_step);
}

absl::Status CheckpointSaver::Save(const RunPosition& position, ParameterSets& parameters,
                                   absl::Duration mean_step) {
  const Waiting waiting(options_.background ? last_save_seconds_ : waited_seconds_);
  SavedInBackground saved;
  WEFT_RETURN_IF_ERROR(checkpoints_.Finish(saved));
  if (saved.step >= 0) NoteSaved(saved.step, saved.failure);
  const absl::Time start = SystemClock().Now();
  WEFT_RETURN_IF_ERROR(group_.Agree(CheckLock()));
  WEFT_RETURN_IF_ERROR(parameters.WaitAll());
  absl::Status failure;
  WEFT_RETURN_IF_ERROR(checkpoints_.Save(position, parameters, failure));
  NoteSaved(position.step, failure);
  if (!failure.ok()) return absl::OkStatus();
  return Reschedule(position.step, SystemClock().Now() - start, mean_step);
}

absl::Status CheckpointSaver::BeginSave(const RunPosition& position, ParameterSets& parameters,
                                        absl::Duration mean_step) {
  const double before = waited_seconds_;
  bool began = false;
  {
    const Waiting waiting(waited_seconds_);
    WEFT_RETURN_IF_ERROR(group_.Agree(CheckLock()));
    SavedInBackground saved;
    WEFT_RETURN_IF_ERROR(checkpoints_.Begin(position, parameters, began, saved));
    if (saved.step >= 0) NoteSaved(saved.step, saved.failure);
  }
  if (!began) ++left_out_;
  ++due_;
  return Reschedule(position.step, absl::Seconds(waited_seconds_ - before), mean_step);
}

absl::Status CheckpointSaver::FinishCopy() {
  const Waiting waiting(waited_seconds_);
  return checkpoints_.FinishCopy();
}

void CheckpointSaver::NoteSaved(int64_t step, const absl::Status& failure) {
  unsaved_ = failure;
  if (failure.ok()) return;
  ++failed_;
  last_failed_ = absl::StrCat("of step ", step, ": ", failure.message());
  if (progress_ == nullptr) return;
  metrics_->AppendFailedCheckpoint(step, failure.message());
  progress_->Note(absl::StrCat("no checkpoint ", last_failed_));
}

// After a save that took `cost`. Rank 0 chooses for all, since each measures other times.
absl::Status CheckpointSaver::Reschedule(int64_t step, absl::Duration cost,
                                         absl::Duration mean_step) {
  if (options_.between_failures <= absl::ZeroDuration() || mean_step <= absl::ZeroDuration()) {
    return absl::OkStatus();
  }
  WEFT_ASSIGN_OR_RETURN(
      const std::string chosen,
      group_.FromFirst(group_.rank() == 0 ? absl::StrCat(ChooseInterval(cost, mean_step)) : ""));
  int64_t interval = 0;
  if (!absl::SimpleAtoi(chosen, &interval) || interval < 1) {
    return absl::DataLossError(
        absl::StrCat("rank 0 chose '", chosen, "' steps between checkpoints"));
  }
  schedule_.Follow(step, interval);
  return absl::OkStatus();
}

int64_t CheckpointSaver::ChooseInterval(absl::Duration cost, absl::Duration mean_step) {
  const absl::Duration mean = MeanTimeBetweenFailures(
      options_.between_failures, SystemClock().Now() - options_.started, options_.failures);
  const double steps = absl::FDivDuration(BestSaveInterval(cost, mean), mean_step);
  const auto interval = static_cast<int64_t>(std::clamp(std::round(steps), 1.0, kLongestInterval));
  // The user is not told of every small change of what was measured.
  const double change = static_cast<double>(interval - said_interval_);
  if (std::abs(change) <= 0.2 * static_cast<double>(said_interval_)) return interval;
  said_interval_ = interval;
  progress_->Note(absl::StrFormat(
      "from here a checkpoint every %d steps: it takes %.3f s, a step %.3f s, a failure comes "
      "every %s (recovery.mtbf)",
      interval, absl::ToDoubleSeconds(cost), absl::ToDoubleSeconds(mean_step),
      absl::FormatDuration(absl::Trunc(mean, absl::Milliseconds(1)))));
  return interval;
}

}  // namespace weft::train
