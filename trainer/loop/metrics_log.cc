#include "trainer/loop/metrics_log.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/json_text.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/status.h"
#include "trainer/files/file.h"
#include "trainer/plot/metrics.h"

namespace weft::train {
namespace {

constexpr absl::Duration kRedraw = absl::Seconds(3);

// The whole lines of steps up to `step`.
std::string KeepUpTo(const std::string& text, int64_t step) {
  std::string kept;
  std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    nlohmann::json row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object() || !row.contains("step") || !row["step"].is_number()) continue;
    if (row["step"].get<int64_t>() <= step) absl::StrAppend(&kept, line, "\n");
  }
  return kept;
}

// What is written of a step: all that a new number needs is its row. A value of null is left out.
struct Number {
  const char* key;  // of metrics.jsonl
  const char* tag;  // of TensorBoard; null: none, as it has the step already and takes no objects
  nlohmann::json (*value)(const StepMetrics& metrics);
};

template <auto kField>
nlohmann::json Of(const StepMetrics& metrics) {
  return metrics.*kField;
}
template <auto kAxis>
nlohmann::json Exposed(const StepMetrics& metrics) {
  return metrics.exposed.*kAxis;
}
template <Work kWork>
nlohmann::json Spent(const StepMetrics& metrics) {
  return metrics.work[kWork];
}
template <auto kField>
nlohmann::json Memory(const StepMetrics& metrics) {
  return (metrics.*kField).count();
}
template <auto kField>
nlohmann::json OfBubble(const StepMetrics& metrics) {
  return metrics.bubble ? nlohmann::json((*metrics.bubble).*kField) : nlohmann::json();
}
template <auto kField>
nlohmann::json OfRouter(const StepMetrics& metrics) {
  return metrics.router ? nlohmann::json((*metrics.router).*kField) : nlohmann::json();
}

nlohmann::json LossByDataset(const StepMetrics& metrics) {
  nlohmann::json losses;  // null
  if (!metrics.validation) return losses;
  for (const auto& [dataset, loss] : metrics.validation->by_dataset) losses[dataset] = loss;
  return losses;
}

constexpr Number kNumbers[] = {
    {"step", nullptr, Of<&StepMetrics::step>},
    {"loss", "loss/train", Of<&StepMetrics::loss>},
    {"val_loss", "loss/validation",
     [](const StepMetrics& metrics) {
       return metrics.validation ? nlohmann::json(metrics.validation->mean) : nlohmann::json();
     }},
    {"val_loss_by_dataset", nullptr, LossByDataset},
    {"grad_norm", "optimizer/gradient_norm", Of<&StepMetrics::gradient_norm>},
    {"learning_rate", "optimizer/learning_rate", Of<&StepMetrics::learning_rate>},
    {"tokens", "data/tokens", Of<&StepMetrics::tokens>},
    {"tokens_per_second", "speed/tokens_per_second", Of<&StepMetrics::tokens_per_second>},
    {"step_seconds", "speed/step_seconds", Of<&StepMetrics::step_seconds>},
    {"exposed_comm_seconds", "exposed_seconds/all",
     [](const StepMetrics& metrics) { return nlohmann::json(metrics.exposed.total()); }},
    {"exposed_data_seconds", "exposed_seconds/data", Exposed<&ExposedSeconds::data>},
    {"exposed_tensor_seconds", "exposed_seconds/tensor", Exposed<&ExposedSeconds::tensor>},
    {"exposed_context_seconds", "exposed_seconds/context", Exposed<&ExposedSeconds::context>},
    {"exposed_expert_seconds", "exposed_seconds/expert", Exposed<&ExposedSeconds::expert>},
    {"exposed_pipeline_seconds", "exposed_seconds/pipeline", Exposed<&ExposedSeconds::pipeline>},
    {"bubble_seconds", "bubble/seconds", OfBubble<&StepResult::Bubble::seconds>},
    {"bubble_share", "bubble/share", OfBubble<&StepResult::Bubble::share>},
    {"work_gemm_seconds", "work_seconds/gemm", Spent<Work::kGemm>},
    {"work_attention_seconds", "work_seconds/attention", Spent<Work::kAttention>},
    {"work_elementwise_seconds", "work_seconds/elementwise", Spent<Work::kElementwise>},
    {"work_loss_seconds", "work_seconds/loss", Spent<Work::kLoss>},
    {"work_embedding_seconds", "work_seconds/embedding", Spent<Work::kEmbedding>},
    {"work_gradients_seconds", "work_seconds/gradients", Spent<Work::kGradients>},
    {"work_optimizer_seconds", "work_seconds/optimizer", Spent<Work::kOptimizer>},
    {"work_communication_seconds", "work_seconds/communication", Spent<Work::kCommunication>},
    {"work_data_seconds", "work_seconds/data", Spent<Work::kData>},
    {"work_rest_seconds", "work_seconds/rest", Spent<Work::kRest>},
    {"mfu", "speed/mfu", Of<&StepMetrics::mfu>},
    {"mfu_full", "speed/mfu_full", Of<&StepMetrics::mfu_full>},
    {"page_faults", "memory/page_faults", Of<&StepMetrics::page_faults>},
    {"memory_mappings", "memory/mappings", Of<&StepMetrics::memory_mappings>},
    {"tensor_bytes", "memory/tensor_bytes", Memory<&StepMetrics::tensors>},
    {"anonymous_bytes", "memory/anonymous_bytes", Memory<&StepMetrics::anonymous>},
    {"resident_peak_bytes", "memory/resident_peak_bytes", Memory<&StepMetrics::resident_peak>},
    {"balance_loss", "router/balance_loss", OfRouter<&StepMetrics::Router::balance_loss>},
    {"router_z_loss", "router/z_loss", OfRouter<&StepMetrics::Router::z_loss>},
    {"dropped_choices", "router/dropped_choices", OfRouter<&StepMetrics::Router::dropped>},
};

}  // namespace

std::string ToJson(const StepMetrics& metrics) {
  nlohmann::ordered_json row;
  for (const Number& number : kNumbers) {
    if (nlohmann::json value = number.value(metrics); !value.is_null()) row[number.key] = value;
  }
  return JsonText(row);
}

absl::StatusOr<std::unique_ptr<MetricsLog>> MetricsLog::Open(const std::string& run_dir,
                                                             int64_t step,
                                                             std::optional<double> unigram_loss,
                                                             bool tensorboard) {
  std::string path = run_dir + "/metrics.jsonl";
  std::string kept;
  if (step > 0) {
    absl::StatusOr<std::string> text = ReadFile(path, kMetricsMost);
    if (!text.ok() && !absl::IsNotFound(text.status())) return text.status();
    if (text.ok()) kept = KeepUpTo(*text, step);
  }
  WEFT_RETURN_IF_ERROR(WriteFileAtomically(path, kept));
  LossPlot plot;
  if (!kept.empty()) {
    WEFT_ASSIGN_OR_RETURN(plot, ReadLossMetrics(path));
  }
  int file = open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
  if (file < 0) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::unique_ptr<MetricsLog> log(new MetricsLog(run_dir, file));
  log->plot_ = std::move(plot);
  log->plot_.title = run_dir;
  log->plot_.unigram = unigram_loss;
  if (tensorboard) {
    WEFT_ASSIGN_OR_RETURN(log->tensorboard_,
                          TensorBoardLog::Open(run_dir + "/tensorboard", absl::Now()));
  }
  return log;
}

MetricsLog::~MetricsLog() { close(file_); }

absl::Status MetricsLog::Flush() {
  while (!unwritten_.empty()) {
    ssize_t written = write(file_, unwritten_.data(), unwritten_.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return ErrnoStatus(errno, absl::StrCat("write ", run_dir_, "/metrics.jsonl"));
    unwritten_.erase(0, static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

void MetricsLog::Write(const std::string& line) {
  absl::StrAppend(&unwritten_, line, "\n");
  absl::Status status = Flush();
  if (!status.ok() && !warned_) {
    WEFT_LOG_WARN(status.message(), "; the lines are kept in memory and tried again");
  }
  warned_ = !status.ok();
}

// The file ends with the first line that cannot be written: the run goes on.
void MetricsLog::AppendToTensorBoard(const StepMetrics& metrics) {
  if (tensorboard_ == nullptr) return;
  std::vector<std::pair<const char*, double>> values;
  for (const Number& number : kNumbers) {
    if (number.tag == nullptr) continue;
    const nlohmann::json value = number.value(metrics);
    if (!value.is_null()) values.emplace_back(number.tag, value.get<double>());
  }
  const absl::Status status = tensorboard_->Append(metrics.step, absl::Now(), values);
  if (status.ok()) return;
  WEFT_LOG_WARN(status.message(), "; no more events for TensorBoard");
  tensorboard_.reset();
}

void MetricsLog::Append(const StepMetrics& metrics) {
  Write(ToJson(metrics));
  AppendToTensorBoard(metrics);
  double step = static_cast<double>(metrics.step);
  plot_.train.push_back({step, metrics.loss});
  if (metrics.validation) plot_.validation.push_back({step, metrics.validation->mean});
  if (SystemClock().Now() - drawn_ < kRedraw) return;
  absl::Status drawn = Draw();
  if (!drawn.ok()) WEFT_LOG_WARN(drawn.message());
}

void MetricsLog::AppendFailedCheckpoint(int64_t step, absl::string_view reason) {
  nlohmann::ordered_json row = {{"step", step}, {"checkpoint_failed", std::string(reason)}};
  Write(JsonText(row));
}

void MetricsLog::AppendResumed(int64_t step, absl::string_view from, const ReadTotals& read) {
  nlohmann::ordered_json row = {{"step", step},
                                {"resumed_from", std::string(from)},
                                {"read_bytes", read.read_bytes},
                                {"read_minimum_bytes", read.minimum_bytes},
                                {"needed_bytes", read.needed_bytes},
                                {"passed_bytes", read.passed_bytes}};
  Write(JsonText(row));
}

void MetricsLog::AppendRecovered(int64_t step, const RecoveryPhases& phases) {
  nlohmann::ordered_json took;
  for (const auto& [phase, milliseconds] : phases.Milliseconds()) {
    took[std::string(NameOf(phase))] = std::round(milliseconds * 10) / 10;
  }
  const nlohmann::ordered_json row = {{"step", step},
                                      {"recovered_rank", phases.rank()},
                                      {"generation", phases.generation()},
                                      {"spare", phases.is_spare()},
                                      {"began_ns", phases.begin_ns()},
                                      {"phases_ms", took}};
  Write(row.dump());
}

void MetricsLog::AppendSkipped(int64_t step, absl::string_view reason) {
  nlohmann::ordered_json row = {{"step", step}, {"skipped", std::string(reason)}};
  Write(JsonText(row));
}

absl::Status MetricsLog::Finish() {
  absl::Status status = Flush();
  status.Update(Draw());
  return status;
}

absl::Status MetricsLog::Draw() {
  drawn_ = SystemClock().Now();
  return WriteLossSvg(run_dir_ + "/loss.svg", plot_);
}

}  // namespace weft::train
