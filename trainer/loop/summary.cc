#include "trainer/loop/summary.h"

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status.h"
#include "trainer/device/device.h"
#include "trainer/forecast/memory_check.h"
#include "trainer/forecast/memory_estimate.h"
#include "trainer/memory/memory.h"

namespace weft::train {
namespace {

void PrintCheckpoints(const RunTotals& totals, const CheckpointSaver& saver,
                      const RunCheckpoints& checkpoints) {
  const double waited = 100 * saver.waited_seconds() / totals.seconds;
  if (saver.due_in_background() > 0) {
    absl::FPrintF(stderr,
                  "checkpoints      in the background %d of %d that were due, from %.1f MiB of "
                  "memory a rank; %.2f%% of the time waited for them, %.3f s for the last\n",
                  saver.due_in_background() - saver.left_out(), saver.due_in_background(),
                  static_cast<double>(checkpoints.pool_bytes()) / (1 << 20), waited,
                  saver.last_save_seconds());
  } else if (totals.steps > 0) {
    absl::FPrintF(stderr, "checkpoints      %.2f%% of the time waited for them\n", waited);
  }
  if (checkpoints.times().saves() > 0) {
    absl::FPrintF(stderr, "checkpoint time  %s ms each of rank 0 (in brackets of its processor)\n",
                  checkpoints.times().ToText());
  }
  if (const LocalCheckpoints* local = checkpoints.local(); local != nullptr) {
    absl::FPrintF(stderr,
                  "local copies     %d in %s of each host; %d of them went on to the run's "
                  "folder, %d left out while one was under way\n",
                  local->written(), local->folder(), checkpoints.local_copied(),
                  checkpoints.local_left_out());
  }
  const CheckpointMirror* mirror = checkpoints.mirror();
  if (mirror == nullptr) return;
  absl::FPrintF(stderr, "remote copies    %d in %s; %d left out while one was under way\n",
                mirror->copied(), mirror->folder(), mirror->left_out());
}

void PrintMemory(const std::vector<std::string>& ranks) {
  constexpr size_t kMost = 16;
  for (size_t rank = 0; rank < std::min(kMost, ranks.size()); ++rank) {
    absl::FPrintF(stderr, "%-15s  rank %d: %s\n", rank == 0 ? "memory" : "", rank, ranks[rank]);
  }
}

}  // namespace

absl::Status MemoryUse::Check() const {
  Group& world = *groups_.world;
  absl::StatusOr<StepPlan> plan = StepPlan::Make(config_, SizesOf(groups_.mesh));
  WEFT_RETURN_IF_ERROR(world.Agree(plan.status()));
  const int stage = groups_.pipeline->rank(), shard = groups_.tensor->rank();
  if (device_.is_cpu()) return CheckHostMemory(config_, *plan, stage, shard, snapshots_, world);
  return CheckDeviceMemory(config_, *plan, stage, shard, AddressOf(device_), MemoryOf(device_),
                           world);
}

void MemoryUse::Begin() {
  resident_before_ = ResidentMemory();
  tensors_before_ = TensorMemory();
}

absl::StatusOr<std::vector<std::string>> MemoryUse::Report(const StepPlan& plan,
                                                           const GemmLibraries& gemm) const {
  const absl::StatusOr<MemoryEstimate> estimate = EstimateMemory(
      config_, plan, groups_.pipeline->rank(), groups_.tensor->rank(), snapshots_, &gemm);
  const Bytes peak =
      device_.is_cpu() ? PeakTensorMemory() - tensors_before_ : MemoryOf(device_).tensors_peak;
  const Bytes expected = !estimate.ok()     ? Bytes(0)
                         : device_.is_cpu() ? estimate->tensors()
                                            : estimate->on_device();
  const double error = estimate.ok() && peak.count() > 0 ? 100 * (expected / peak - 1) : 0.0;
  return groups_.world->Gather(absl::StrFormat(
      "tensors %.1f MiB at most, estimated %.1f (%+.1f %%); resident memory grew by %.0f MiB",
      peak / MiB(1), expected / MiB(1), error, (PeakResidentMemory() - resident_before_) / MiB(1)));
}

void PrintSummary(const RunSummary& summary, const CheckpointSaver& saver,
                  const RunCheckpoints& checkpoints) {
  const RunTotals& totals = summary.totals;
  if (!summary.sample.empty()) {
    absl::FPrintF(stderr, "\nThe model writes:\n\n%s", summary.sample);
  }
  absl::FPrintF(stderr, "validation loss  %.4f nats a token (a unigram model: %.4f)\n",
                summary.validation.mean, summary.unigram_loss);
  for (const auto& [dataset, loss] : summary.validation.by_dataset) {
    absl::FPrintF(stderr, "                 %.4f on %s\n", loss, dataset);
  }
  if (totals.steps > 0) {
    absl::FPrintF(stderr,
                  "speed            %.0f tokens/s over %d steps\n"
                  "communication    %.1f%% of the time waited for it\n",
                  static_cast<double>(totals.steps * summary.tokens_per_step) / totals.seconds,
                  totals.steps, 100 * totals.exposed_seconds / totals.seconds);
    if (!summary.pipeline.empty()) {
      absl::FPrintF(stderr,
                    "bubble           %.1f%% of the time waited for the pipeline's schedule (%s), "
                    "%.1f%% of all stages' time in passes\n",
                    100 * totals.bubble_seconds / totals.seconds, summary.pipeline,
                    100 * totals.bubble_share / static_cast<double>(totals.steps));
    }
    absl::FPrintF(stderr,
                  "mfu              %.1f%% (6 N + 6 L h T FLOPs a token: causal attention), "
                  "mfu_full %.1f%% (6 "
                  "N + 12 L h T: full attention)\n",
                  100 * totals.mfu / totals.seconds, 100 * totals.mfu_full / totals.seconds);
    if (summary.has_snapshots) {
      absl::FPrintF(stderr, "snapshots        %.2f%% of the time waited for them\n",
                    100 * totals.snapshot_seconds / totals.seconds);
    }
  }
  PrintCheckpoints(totals, saver, checkpoints);
  PrintMemory(summary.memory);
  const std::pair<const char*, const char*> files[] = {
      {"loss curve", "loss.svg"},     {"numbers", "metrics.jsonl"},  {"timeline", "timeline.svg"},
      {"trace", "trace.json"},        {"sample text", "sample.txt"}, {"model", "model"},
      {"checkpoints", "checkpoints"}, {"settings", "config.toml"},   {"logs", "logs"}};
  for (const auto& [what, name] : files) {
    absl::FPrintF(stderr, "%-15s  %s\n", what, absl::StrCat(summary.run_dir, "/", name));
  }
}

}  // namespace weft::train
