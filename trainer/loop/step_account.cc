#include "trainer/loop/step_account.h"

#include "base/clock.h"
#include "trainer/memory/memory.h"

namespace weft::train {

void StepAccount::Begin(int64_t start_ns) {
  start_ns_ = start_ns;
  TakeWorkSeconds();
  page_faults_ = MinorFaults();
  memory_mappings_ = TensorMappings();
}

int64_t StepAccount::End() {
  const int64_t end_ns = SystemClock::Nanoseconds();
  seconds_ = static_cast<double>(end_ns - start_ns_) * 1e-9;
  work_ = TakeWorkSeconds();
  page_faults_ = MinorFaults() - page_faults_;
  memory_mappings_ = TensorMappings() - memory_mappings_;
  return end_ns;
}

StepMetrics StepAccount::MetricsOf(int64_t step, const StepResult& result) const {
  StepMetrics metrics;
  metrics.step = step;
  metrics.loss = result.loss;
  metrics.gradient_norm = result.gradient_norm;
  metrics.learning_rate = result.learning_rate;
  metrics.tokens = step * tokens_per_step();
  metrics.step_seconds = seconds_;
  metrics.tokens_per_second = static_cast<double>(tokens_per_step()) / seconds_;
  metrics.exposed = result.exposed;
  metrics.work = work_;
  metrics.page_faults = page_faults_;
  metrics.memory_mappings = memory_mappings_;
  if (config_.model.HasExperts()) {
    metrics.router = {result.balance_loss, result.router_z_loss, result.dropped};
  }
  metrics.tensors = TensorMemory();
  metrics.anonymous = AnonymousMemory();
  metrics.resident_peak = PeakResidentMemory();
  metrics.bubble = result.bubble;
  const double rate = metrics.tokens_per_second / peak_flops_;
  metrics.mfu = rate * TrainingFlopsPerToken(config_.model, AttentionFlops::kCausal);
  metrics.mfu_full = rate * TrainingFlopsPerToken(config_.model, AttentionFlops::kFull);
  return metrics;
}

void StepAccount::Count(const StepMetrics& metrics) {
  totals_.seconds += metrics.step_seconds;
  totals_.exposed_seconds += metrics.exposed.total();
  if (metrics.bubble) {
    totals_.bubble_seconds += metrics.bubble->seconds;
    totals_.bubble_share += metrics.bubble->share;
  }
  totals_.mfu += metrics.mfu * metrics.step_seconds;
  totals_.mfu_full += metrics.mfu_full * metrics.step_seconds;
  ++totals_.steps;
}

absl::Duration StepAccount::mean_step() const {
  if (totals_.steps == 0) return absl::ZeroDuration();
  return absl::Seconds(totals_.seconds / static_cast<double>(totals_.steps));
}

}  // namespace weft::train
