#include "trainer/loop/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/trace.h"
#include "trainer/data/batch_loader.h"
#include "trainer/device/device.h"
#include "trainer/files/file.h"
#include "trainer/generate/generate.h"
#include "trainer/generate/trained_model.h"
#include "trainer/kernel_choice/kernel_choice.h"
#include "trainer/loop/checkpoint_saver.h"
#include "trainer/loop/checkpoints.h"
#include "trainer/loop/compute_threads.h"
#include "trainer/loop/export.h"
#include "trainer/loop/forecast.h"
#include "trainer/loop/metrics_log.h"
#include "trainer/loop/peak.h"
#include "trainer/loop/progress.h"
#include "trainer/loop/step.h"
#include "trainer/loop/step_trace.h"
#include "trainer/loop/summary.h"
#include "trainer/memory/memory.h"
#include "trainer/plot/timeline.h"
#include "trainer/profile/work_time.h"

namespace weft::train {
namespace {

constexpr int64_t kTimelineSteps = 2;  // that timeline.svg shows

// What a step took on this rank.
struct StepCost {
  double seconds = 0;
  WorkSeconds work;
  int64_t page_faults = 0;
  int64_t memory_mappings = 0;
};

// The lines of a config's text whose values are not the defaults, below their sections.
std::string ChangedSettings(const std::string& text) {
  const absl::StatusOr<TrainConfig> standard = LoadTrainConfig("", {});
  if (!standard.ok()) return text;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  const std::vector<std::string> defaults = absl::StrSplit(standard->text, '\n');
  std::string changed;
  absl::string_view section, named;
  for (size_t i = 0; i < lines.size(); ++i) {  // the same keys in one order
    if (absl::StartsWith(lines[i], "[")) section = lines[i];
    if (i < defaults.size() && lines[i] == defaults[i]) continue;
    if (named != section) absl::StrAppend(&changed, section, "\n");
    named = section;
    absl::StrAppend(&changed, lines[i], "\n");
  }
  return changed;
}

class Run {
 public:
  Run(const RunOptions& options, ParallelGroups& groups, at::Device device)
      : options_(options),
        device_(device),
        config_(options.config),
        groups_(groups),
        group_(*groups.world),
        checkpoints_(Path("checkpoints"), config_, groups, options.before_checkpoint_copy),
        saver_({.every = config_.checkpoint_every,
                .background = config_.checkpoint_background,
                .lock = options.lock,
                .between_failures = options.between_failures,
                .started = options.started,
                .failures = options.failures},
               group_, checkpoints_),
        memory_(config_, groups, device, TakesSnapshots()) {}

  // Nothing in the background uses parameters or groups afterwards. Its error is the run's, or
  // comes from it.
  void Settle() {
    if (options_.snapshots != nullptr) options_.snapshots->Finish().IgnoreError();
    SavedInBackground saved;
    checkpoints_.Finish(saved).IgnoreError();
  }

  absl::StatusOr<RunOutcome> Execute() {
    WEFT_RETURN_IF_ERROR(CheckSameConfig());
    // A run that begins anew must not leave the old one's checkpoints to be resumed from.
    if (!options_.resume) WEFT_RETURN_IF_ERROR(checkpoints_.ExpectNone());
    WEFT_RETURN_IF_ERROR(group_.Agree(OpenData()));
    WEFT_RETURN_IF_ERROR(CheckMemory());
    // Before parameters, gradients and the optimizer's states are touched first: the kernel puts
    // each page on the NUMA node of the thread that does.
    WEFT_RETURN_IF_ERROR(BindThreads());
    WEFT_RETURN_IF_ERROR(group_.Agree(MakeStepper()));
    Note(RecoveryPhase::kBuild);
    stepper_->set_before_update([this] { return FinishCopies(); });
    WEFT_RETURN_IF_ERROR(Restore());
    Note(RecoveryPhase::kState);
    // Once: a run that goes on after a failure takes what it had.
    const double measure = options_.recovered ? 0 : options_.measure_kernels;
    WEFT_ASSIGN_OR_RETURN(
        gemm_, Choose(TrialOf::kGemm, config_, stepper_->plan(), position_.gemm, group_, measure));
    WEFT_ASSIGN_OR_RETURN(attention_, Choose(TrialOf::kAttention, config_, stepper_->plan(),
                                             position_.attention, group_, measure));
    stepper_->SetLibraries(gemm_.libraries, attention_.attention);
    position_.gemm = gemm_.text;
    position_.attention = attention_.text;
    double* const known = options_.peak_flops;
    WEFT_ASSIGN_OR_RETURN(peak_flops_, PeakFlops(config_, gemm_.libraries, device_,
                                                 known != nullptr ? *known : 0, group_));
    if (known != nullptr) *known = peak_flops_;
    WEFT_RETURN_IF_ERROR(group_.Agree(PrepareFolder()));
    WEFT_RETURN_IF_ERROR(StartLoader());
    if (is_first()) PrintStart();
    ForgetTensorPeak();
    WEFT_ASSIGN_OR_RETURN(bool stopped, Loop());
    WEFT_RETURN_IF_ERROR(Require("remote checkpoint", [&] { return checkpoints_.FinishMirror(); }));
    WEFT_ASSIGN_OR_RETURN(memory_report_, memory_.Report(stepper_->plan(), gemm_.libraries));
    GiveBackFreeMemory();
    WEFT_RETURN_IF_ERROR(WriteTrace());
    if (!stopped) WEFT_RETURN_IF_ERROR(Finish());
    WEFT_RETURN_IF_ERROR(Require("metrics", [this] { return metrics_->Finish(); }));
    if (!saver_.unsaved().ok()) {
      outcome_.missing.push_back(absl::StrCat("checkpoint ", saver_.last_failed()));
    }
    if (is_first()) PrintFailures();
    return outcome_;
  }

 private:
  bool is_first() const { return group_.rank() == 0; }
  std::string Path(absl::string_view name) const {
    return absl::StrCat(options_.run_dir, "/", name);
  }
  int64_t tokens_per_step() const { return config_.global_batch * config_.model.sequence; }

  absl::Status CheckSameConfig() {
    std::string mine =
        absl::StrCat(config_.text, "resolved precision = ", NameOf(config_.precision));
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> all, group_.Gather(mine));
    for (size_t rank = 1; rank < all.size(); ++rank) {
      std::string difference = DescribeDifference(all[0], all[rank]);
      if (difference.empty()) continue;
      return AsAgreed(absl::FailedPreconditionError(absl::StrCat(
          "rank ", rank, " has another config than rank 0: ", difference, " on rank ", rank)));
    }
    return absl::OkStatus();
  }

  absl::Status OpenData() {
    WEFT_RETURN_IF_ERROR(data_.Open(options_.config, is_first()));
    config_.model.vocabulary = data_.info.vocab_size;
    return absl::OkStatus();
  }

  // Without packed weights where only their copies have no room.
  absl::Status CheckMemory() {
    const absl::Status status = memory_.Check();
    if (!absl::IsInvalidArgument(status) || !config_.pack_weights) return status;
    config_.pack_weights = false;
    return memory_.Check();
  }

  absl::Status MakeStepper() {
    memory_.Begin();
    if (config_.trace_steps > 0 || groups_.records != nullptr) {
      WEFT_ASSIGN_OR_RETURN(const StepPlan plan, StepPlan::Make(config_, SizesOf(groups_.mesh)));
      // Passes, waits and exchanges of a layer: some for each micro-batch and chunk.
      const int64_t spans = 64 + 16 * config_.model.layers * plan.pipeline.micro_batches *
                                     std::max(config_.tensor_chunks, config_.expert_pieces);
      steps_trace_.emplace(TraceTrackNames(), config_.trace_steps, static_cast<size_t>(spans));
      trace_ = &steps_trace_->trace();
      if (groups_.records != nullptr) trace_->SetRecords(groups_.records, kComputeTrack);
      groups_.SetTrace(trace_);
    }
    WEFT_ASSIGN_OR_RETURN(stepper_, Stepper::Create(config_, &groups_, trace_, device_));
    return absl::OkStatus();
  }

  absl::Status Restore() {
    std::optional<RunPosition> position;
    if (options_.recovered && options_.snapshots != nullptr) {
      WEFT_ASSIGN_OR_RETURN(position, options_.snapshots->Restore(stepper_->parameters(), groups_));
      from_memory_ = position.has_value();
      if (from_memory_) WEFT_RETURN_IF_ERROR(checkpoints_.Tidy());
    }
    if (options_.resume) {
      if (!from_memory_) {
        WEFT_ASSIGN_OR_RETURN(position, checkpoints_.Load(stepper_->parameters()));
      }
      resumed_ = position.has_value();
      if (resumed_) position_ = *position;
      if (!position_.loss_scale.empty()) {
        WEFT_RETURN_IF_ERROR(stepper_->loss_scale().FromText(position_.loss_scale));
      }
    }
    if (!resumed_) WEFT_RETURN_IF_ERROR(stepper_->Initialize());
    if (options_.recovered && options_.going_on) {
      WEFT_RETURN_IF_ERROR(options_.going_on(position_.step));
    }
    return stepper_->parameters().Publish();
  }

  absl::Status PrepareFolder() {
    if (!is_first()) return absl::OkStatus();
    WEFT_RETURN_IF_ERROR(saver_.CheckLock());
    WEFT_RETURN_IF_ERROR(MakeFolders(Path("checkpoints")));
    WEFT_RETURN_IF_ERROR(WriteFileAtomically(Path("config.toml"), config_.text));
    WEFT_ASSIGN_OR_RETURN(std::string schedule, DrawPipeline(config_, stepper_->plan()));
    if (!schedule.empty()) {
      WEFT_RETURN_IF_ERROR(WriteFileAtomically(Path("schedule.svg"), schedule));
    }
    WEFT_ASSIGN_OR_RETURN(metrics_, MetricsLog::Open(options_.run_dir, position_.step,
                                                     data_.info.unigram_loss, config_.tensorboard));
    progress_ = std::make_unique<Progress>(config_, position_.step);
    saver_.TellTo(*metrics_, *progress_);
    return absl::OkStatus();
  }

  absl::Status StartLoader() {
    // The loader's thread would inherit this thread's core.
    if (threads_) threads_->Unbind();
    absl::StatusOr<std::unique_ptr<BatchLoader>> loader =
        BatchLoader::Start(data_.training, {.global_batch = config_.global_batch,
                                            .rank = groups_.replica,
                                            .world_size = stepper_->plan().sizes.data,
                                            .start_sample = position_.samples,
                                            .prefetch = config_.data_prefetch});
    if (loader.ok()) loader_ = *std::move(loader);
    if (threads_) threads_->Rebind();
    return group_.Agree(loader.status());
  }

  absl::Status BindThreads() {
    if (!device_.is_cpu()) return absl::OkStatus();
    WEFT_ASSIGN_OR_RETURN(ComputeThreads threads, ComputeThreads::Bind(groups_, options_.threads));
    threads_.emplace(std::move(threads));
    return absl::OkStatus();
  }

  void PrintStart() {
    if (options_.recovered) {
      progress_->Note(absl::StrFormat("all ranks are here again: goes on after step %d, from %s",
                                      position_.step,
                                      from_memory_ ? "memory"
                                      : resumed_   ? "a checkpoint"
                                                   : "the beginning"));
      return;
    }
    absl::FPrintF(stderr, "%s(what differs from the defaults; all settings: %s)\n\n",
                  ChangedSettings(config_.text), Path("config.toml"));
    progress_->Note(absl::StrFormat(
        "%.2f M parameters, %d ranks%s x %d threads, %s compute on %s, products by %s, "
        "attention by %s, peak %.0f GFLOP/s",
        static_cast<double>(ElementCount(GptParameters(config_.model))) / 1e6, group_.size(),
        DescribeLayout(), options_.threads, NameOf(config_.precision), DescribeDevice(device_),
        gemm_.description, attention_.description, peak_flops_ / 1e9));
    if (threads_) progress_->Note(absl::StrCat("compute threads ", threads_->description()));
    if (const Bytes packed = stepper_->packed_bytes(); packed.count() > 0) {
      progress_->Note(absl::StrFormat("weights packed once a step: %.1f MiB (train.pack_weights)",
                                      static_cast<double>(packed.count()) / (1 << 20)));
    } else if (options_.config.pack_weights && !config_.pack_weights) {
      progress_->Note("weights are not packed once a step: there is no memory for the copies");
    }
    for (const KernelChoice* choice : {&gemm_, &attention_}) {
      for (const KernelRates& row : choice->rates) PrintRates(row);
      if (!choice->note.empty()) progress_->Note(choice->note);
    }
    if (resumed_) {
      NoteResumed();
    } else if (options_.resume) {
      progress_->Note("no checkpoint yet: starting from the beginning");
    }
  }

  void PrintRates(const KernelRates& row) {
    std::string text = absl::StrFormat("rate %-22s  %5d rows: weft %4.0f, aten %4.0f", row.name,
                                       row.rows, row.weft / 1e9, row.aten / 1e9);
    if (row.onednn > 0) absl::StrAppendFormat(&text, ", onednn %4.0f", row.onednn / 1e9);
    absl::StrAppend(&text, " GFLOP/s");
    if (row.part < 1) absl::StrAppendFormat(&text, ", from %.1f %% of the shape", 100 * row.part);
    progress_->Note(text);
  }

  void NoteResumed() {
    const ReadTotals& read = checkpoints_.read();
    auto mebibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
    progress_->Note(absl::StrFormat("resumed after step %d, from %s", position_.step,
                                    checkpoints_.loaded_from()));
    progress_->Note(absl::StrFormat(
        "read %.1f MiB of it, where %.1f is the least; the ranks needed %.1f MiB, %.1f of them "
        "passed on by others",
        mebibytes(read.read_bytes), mebibytes(read.minimum_bytes), mebibytes(read.needed_bytes),
        mebibytes(read.passed_bytes)));
    metrics_->AppendResumed(position_.step, checkpoints_.loaded_from(), read);
  }

  // " (tensor 2 x context 1 x data 1 x pipeline 2, 8 micro-batches, 1f1b)"; "" where all ranks are
  // data-parallel.
  std::string DescribeLayout() const {
    const StepPlan& plan = stepper_->plan();
    if (plan.sizes.tensor * plan.sizes.context * plan.pipeline.depth() == 1) return "";
    std::string text =
        absl::StrCat(" (tensor ", plan.sizes.tensor, " x context ", plan.sizes.context, " x data ",
                     plan.sizes.data, " x pipeline ", plan.sizes.pipeline, ", ",
                     plan.pipeline.micro_batches, " micro-batches");
    if (plan.sizes.pipeline > 1) absl::StrAppend(&text, ", ", ToString(plan.pipeline.kind));
    return text + ")";
  }

  // Whether it was stopped before the last step.
  absl::StatusOr<bool> Loop() {
    while (position_.step < config_.steps) {
      int64_t start = SystemClock::Nanoseconds();
      int64_t step = position_.step + 1;
      if (groups_.records != nullptr) groups_.records->SetStep(step);
      if (steps_trace_) steps_trace_->BeginStep(step);
      TakeWorkSeconds();
      const int64_t faults = MinorFaults(), mappings = TensorMappings();
      absl::StatusOr<Batch> batch = NextBatch(step);
      bool stop_requested = options_.stop != nullptr && options_.stop->load();
      WEFT_ASSIGN_OR_RETURN(StepResult result, stepper_->Step(step, batch, stop_requested));
      const int64_t end = SystemClock::Nanoseconds();
      double seconds = static_cast<double>(end - start) * 1e-9;
      const StepCost cost{seconds, TakeWorkSeconds(), MinorFaults() - faults,
                          TensorMappings() - mappings};
      RecordStep(step, result, start, end);
      if (std::exchange(tells_phases_, false)) WEFT_RETURN_IF_ERROR(TellPhases(step));
      position_ = {step, loader_->position(), stepper_->loss_scale().ToText(), position_.gemm,
                   position_.attention};
      WEFT_RETURN_IF_ERROR(AfterStep(result, cost));
      if (result.stop && step < config_.steps) {
        WEFT_RETURN_IF_ERROR(Save());
        if (is_first()) {
          progress_->Finish();
          progress_->Note(absl::StrFormat("stopped after step %d%s", step,
                                          saver_.unsaved().ok() ? "; --resume goes on" : ""));
        }
        return true;
      }
    }
    // A run without steps exports the model that it began with, from a checkpoint.
    if (config_.steps == 0 && !resumed_) WEFT_RETURN_IF_ERROR(Save());
    return false;
  }

  void Note(RecoveryPhase phase) {
    if (options_.phases != nullptr) options_.phases->Note(phase);
  }

  // After the first step since some rank was started anew: rank 0 says where the time went.
  absl::Status TellPhases(int64_t step) {
    Note(RecoveryPhase::kFirstStep);
    const bool has_phases = options_.phases != nullptr && options_.phases->is_pending();
    WEFT_ASSIGN_OR_RETURN(const std::vector<std::string> texts,
                          group_.Gather(has_phases ? options_.phases->ToText() : ""));
    if (has_phases) options_.phases->Done();
    for (const std::string& text : texts) {
      if (!is_first() || text.empty()) continue;
      WEFT_ASSIGN_OR_RETURN(const RecoveryPhases phases, RecoveryPhases::FromText(text));
      progress_->Note(phases.Sentence());
      metrics_->AppendRecovered(step, phases);
    }
    return absl::OkStatus();
  }

  // A step that was left out has no loss; the rest of it is as of any other.
  void LogStep(const StepResult& result, const StepMetrics& metrics) {
    if (result.skipped.empty()) {
      metrics_->Append(metrics);
      progress_->Step(metrics);
    } else {
      metrics_->AppendSkipped(metrics.step, result.skipped);
      progress_->Note(absl::StrCat("left out: ", result.skipped));
    }
  }

  absl::StatusOr<Batch> NextBatch(int64_t step) {
    TraceScope scope(trace_, "data", kComputeTrack, step);
    const WorkScope work(Work::kData);
    return loader_->Next();
  }

  void RecordStep(int64_t step, const StepResult& result, int64_t start_ns, int64_t end_ns) {
    if (groups_.records == nullptr) return;
    StepRecord record;
    record.start_ns = start_ns;
    record.end_ns = end_ns;
    record.step = step;
    record.loss = result.loss;
    record.tokens = static_cast<uint64_t>(tokens_per_step());
    const double bubble = result.bubble ? result.bubble->seconds : 0;
    record.exposed_ns = static_cast<int64_t>((result.exposed.total() + bubble) * 1e9);
    groups_.records->Write(record);
  }

  absl::Status AfterStep(const StepResult& result, const StepCost& cost) {
    const double seconds = cost.seconds;
    int64_t step = position_.step;
    StepMetrics metrics;
    metrics.step = step;
    metrics.loss = result.loss;
    metrics.gradient_norm = result.gradient_norm;
    metrics.learning_rate = result.learning_rate;
    metrics.tokens = step * tokens_per_step();
    metrics.step_seconds = seconds;
    metrics.tokens_per_second = static_cast<double>(tokens_per_step()) / seconds;
    metrics.exposed = result.exposed;
    metrics.work = cost.work;
    metrics.page_faults = cost.page_faults;
    metrics.memory_mappings = cost.memory_mappings;
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
    bool is_last = step == config_.steps;
    if (is_last || (config_.validation_every > 0 && step % config_.validation_every == 0)) {
      WEFT_ASSIGN_OR_RETURN(validation_loss_, Validate());
      metrics.validation_loss = validation_loss_;
    }
    totals_.seconds += seconds;
    totals_.exposed_seconds += result.exposed.total();
    if (result.bubble) {
      totals_.bubble_seconds += result.bubble->seconds;
      totals_.bubble_share += result.bubble->share;
    }
    totals_.mfu += metrics.mfu * seconds;
    totals_.mfu_full += metrics.mfu_full * seconds;
    ++totals_.steps;
    if (is_first()) LogStep(result, metrics);
    if (is_last) return Save();
    if (saver_.IsDue(step)) {
      WEFT_RETURN_IF_ERROR(SaveAfterStep());
    }
    return BeginSnapshot();
  }

  bool TakesSnapshots() const { return options_.snapshots != nullptr && group_.size() > 1; }

  // After the step's line and checkpoint are written: who comes back to it misses neither.
  absl::Status BeginSnapshot() {
    if (!TakesSnapshots()) return absl::OkStatus();
    const bool is_new = options_.snapshots->bytes() == Bytes(0);
    const int64_t start = SystemClock::Nanoseconds();
    WEFT_RETURN_IF_ERROR(options_.snapshots->Begin(position_, stepper_->parameters(), groups_));
    totals_.snapshot_seconds += static_cast<double>(SystemClock::Nanoseconds() - start) * 1e-9;
    if (is_new && is_first()) {
      progress_->Note(absl::StrFormat(
          "snapshots of the last 2 steps, of %s: %.1f MiB in memory (recovery.snapshot)",
          options_.snapshots->keeps_another() ? "2 ranks" : "this rank, as its replicas have them",
          static_cast<double>(options_.snapshots->bytes().count()) / (1 << 20)));
    }
    return absl::OkStatus();
  }

  // Ends the step before's copies, in the step that is about to change the state.
  absl::Status FinishCopies() {
    TraceScope scope(trace_, "wait_snapshot", kComputeTrack, position_.step);
    saver_.FinishCopy();
    const int64_t copied = SystemClock::Nanoseconds();
    const absl::Status status = TakesSnapshots() ? options_.snapshots->Finish() : absl::OkStatus();
    totals_.snapshot_seconds += static_cast<double>(SystemClock::Nanoseconds() - copied) * 1e-9;
    return status;
  }

  absl::StatusOr<double> Validate() {
    int64_t whole = data_.validation->samples_per_epoch() / config_.global_batch;
    return stepper_->Validate(*data_.validation,
                              std::clamp<int64_t>(whole, 1, config_.validation_batches));
  }

  absl::Status Save() {
    TraceScope scope(trace_, "checkpoint", kComputeTrack, position_.step);
    return saver_.Save(position_, stepper_->parameters(), mean_step());
  }

  absl::Status SaveAfterStep() {
    TraceScope scope(trace_, "checkpoint", kComputeTrack, position_.step);
    return saver_.SaveAfter(position_, stepper_->parameters(), mean_step());
  }

  absl::Duration mean_step() const {
    if (totals_.steps == 0) return absl::ZeroDuration();
    return absl::Seconds(totals_.seconds / static_cast<double>(totals_.steps));
  }

  // `write`, on rank 0, writes a file that a finished run must have.
  absl::Status Require(absl::string_view what, const std::function<absl::Status()>& write) {
    absl::Status agreed;
    WEFT_RETURN_IF_ERROR(group_.RunOnFirst(write, agreed));
    if (!agreed.ok()) outcome_.missing.push_back(absl::StrCat(what, ": ", agreed.message()));
    return absl::OkStatus();
  }

  // Says again what scrolled away long ago.
  void PrintFailures() {
    progress_->Finish();
    if (saver_.failed() == 0) return;
    progress_->Note(absl::StrFormat(
        "%d checkpoints could not be written (metrics.jsonl: checkpoint_failed), the last %s",
        saver_.failed(), saver_.last_failed()));
  }

  absl::Status WriteTrace() {
    if (config_.trace_steps == 0) return absl::OkStatus();
    // Steps that are whole on every rank.
    const int64_t wanted = steps_trace_->wanted_step();
    int64_t first = steps_trace_->whole_step();
    WEFT_ASSIGN_OR_RETURN(std::vector<std::string> parts, group_.Gather(absl::StrCat(first)));
    for (const std::string& part : parts) {
      int64_t of_rank = 0;
      if (absl::SimpleAtoi(part, &of_rank)) first = std::max(first, of_rank);
    }
    const uint64_t lost = steps_trace_->SpansBefore(first);
    WEFT_ASSIGN_OR_RETURN(parts, group_.GatherOnFirst(ChromeEvents(*trace_, group_.rank(), first)));
    std::string other;
    if (lost > 0) {
      other =
          absl::StrFormat(R"({"first_step":%d,"first_step_wanted":%d,"lost_spans_of_rank_0":%d})",
                          first, wanted, lost);
    }
    if (lost > 0 && is_first()) {
      WEFT_LOG_WARN("trace.json begins with step ", first, " and not with step ", wanted,
                    " (log.trace_steps = ", config_.trace_steps, "): a step has up to ",
                    steps_trace_->spans_of_a_step(), " spans, and a rank keeps ",
                    steps_trace_->bytes().count() >> 20, " MiB of them; ", lost,
                    " older ones of rank 0 are lost");
    }
    return Require("timeline", [&] { return WriteTimeline(parts, other); });
  }

  absl::Status WriteTimeline(const std::vector<std::string>& parts, const std::string& other) {
    WEFT_RETURN_IF_ERROR(WriteFileAtomically(Path("trace.json"), MergeChromeJson(parts, other)));
    WEFT_ASSIGN_OR_RETURN(std::vector<TimelineSpan> spans, ParseTimeline(parts));
    const std::string picture = DrawTimeline(spans, TraceTrackNames(), kTimelineSteps);
    return picture.empty() ? absl::OkStatus() : WriteFileAtomically(Path("timeline.svg"), picture);
  }

  // After the last step: losses, samples, the exported model.
  absl::Status Finish() {
    if (std::isnan(validation_loss_)) {  // resumed at the end
      WEFT_ASSIGN_OR_RETURN(validation_loss_, Validate());
    }
    return Require("sample text and model", [this] { return FinishFirst(); });
  }

  // The model after the last step, from the run's folder. A run that was resumed after that step
  // has saved none there: it may have come from another tier.
  absl::StatusOr<std::vector<at::Tensor>> LoadLast() {
    const std::string own = absl::StrCat(Path("checkpoints"), "/", CheckpointName(position_.step));
    const std::string& loaded = checkpoints_.loaded_from();
    absl::StatusOr<std::vector<at::Tensor>> last = LoadModel(own, config_.model, config_.precision);
    if (last.ok() || totals_.steps > 0 || loaded.empty() || loaded == own) return last;
    return LoadModel(loaded, config_.model, config_.precision);
  }

  absl::Status FinishFirst() {
    progress_->Finish();
    Gpt* model = stepper_->whole_model();
    std::unique_ptr<Gpt> assembled;
    if (model == nullptr) {  // cut over ranks: put together from the checkpoint of the last step
      if (!saver_.unsaved().ok()) {
        return Annotate(saver_.unsaved(), "the model is cut over ranks and not saved");
      }
      WEFT_ASSIGN_OR_RETURN(std::vector<at::Tensor> tensors, LoadLast());
      assembled = std::make_unique<Gpt>(config_.model, std::move(tensors));
      model = assembled.get();
    }
    const absl::StatusOr<std::string> sample = WriteSample(*model, *data_.tokenizer);
    WEFT_RETURN_IF_ERROR(
        ExportModel(*model, data_.info.tokenizer, data_.tokenizer->eod_id(), Path("model")));
    WEFT_RETURN_IF_ERROR(sample.status());  // a model that writes nothing is exported all the same
    const StepPlan& plan = stepper_->plan();
    PrintSummary(
        {.run_dir = options_.run_dir,
         .sample = *sample,
         .validation_loss = validation_loss_,
         .unigram_loss = data_.info.unigram_loss,
         .tokens_per_step = tokens_per_step(),
         .totals = totals_,
         .has_snapshots = options_.snapshots != nullptr,
         .pipeline =
             plan.sizes.pipeline > 1 && device_.is_cpu() ? ToString(plan.pipeline.kind) : "",
         .memory = memory_report_},
        saver_, checkpoints_);
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> WriteSample(Gpt& model, const Tokenizer& tokenizer) {
    std::string text;
    if (config_.sample_tokens == 0) return text;
    std::vector<std::string> prompts;
    for (absl::string_view prompt : absl::StrSplit(config_.sample_prompt, '|')) {
      prompts.insert(prompts.end(), static_cast<size_t>(config_.sample_count), std::string(prompt));
    }
    WEFT_ASSIGN_OR_RETURN(const Generated written,
                          Generate(model, tokenizer, prompts,
                                   {.tokens = config_.sample_tokens,
                                    .temperature = config_.sample_temperature,
                                    .top_k = config_.sample_top_k,
                                    .seed = config_.seed,
                                    .cut_prompts = true}));
    for (const GeneratedText& part : written.texts) absl::StrAppend(&text, part.text, "\n\n");
    WEFT_RETURN_IF_ERROR(WriteFileAtomically(Path("sample.txt"), text));
    return text;
  }

  const RunOptions& options_;
  const at::Device device_;
  TrainConfig config_;
  ParallelGroups& groups_;
  Group& group_;  // everybody
  RunCheckpoints checkpoints_;
  CheckpointSaver saver_;
  MemoryUse memory_;
  RunData own_data_;  // where the caller keeps none
  RunData& data_ = options_.data != nullptr ? *options_.data : own_data_;
  std::optional<StepTrace> steps_trace_;
  Trace* trace_ = nullptr;  // of steps_trace_; null: there is none
  std::unique_ptr<Stepper> stepper_;
  std::unique_ptr<BatchLoader> loader_;
  std::unique_ptr<MetricsLog> metrics_;    // rank 0
  std::unique_ptr<Progress> progress_;     // rank 0
  std::optional<ComputeThreads> threads_;  // on a CPU
  RunPosition position_;
  bool resumed_ = false;
  bool from_memory_ = false;
  bool tells_phases_ = options_.recovered && group_.size() > 1;
  RunOutcome outcome_;
  double peak_flops_ = 0;
  KernelChoice gemm_, attention_;
  std::vector<std::string> memory_report_;
  double validation_loss_ = std::numeric_limits<double>::quiet_NaN();
  RunTotals totals_;
};

}  // namespace

// Afterwards there are no groups, whoever waited for this rank in one has been told, and what was
// under way touches no tensor any more.
static void Leave(ParallelGroups& groups) {
  for (std::unique_ptr<Group>* group :
       {&groups.world, &groups.snapshots, &groups.checkpoints, &groups.checkpoint_copies,
        &groups.data, &groups.tensor, &groups.pipeline, &groups.ends, &groups.context,
        &groups.expert, &groups.shard, &groups.replicas}) {
    group->reset();
  }
  groups.experts.reset();
}

absl::StatusOr<RunOutcome> Train(const RunOptions& options, ParallelGroups& groups) {
  at::set_num_threads(options.threads);
  const TrainConfig& wanted = options.config;
  // A stage has its receives under way before it needs them.
  const bool receives_early =
      wanted.pipeline_parallel > 1 && wanted.device_collectives != DeviceCollectives::kStaged;
  const absl::StatusOr<at::Device> device =
      OpenDevice(wanted.device, options.local_rank, /*loads_all=*/receives_early);
  WEFT_RETURN_IF_ERROR(groups.world->Agree(device.status()));
  if (!device->is_cpu()) {
    // Backward passes run on this thread, as on the CPU: groups and traces are used by one thread.
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  WEFT_RETURN_IF_ERROR(
      groups.OpenDeviceCollectives(options.config, *device, options.collective_timeout));
  Run run(options, groups, *device);
  absl::StatusOr<RunOutcome> outcome = run.Execute();
  if (!outcome.ok()) groups.Fail(outcome.status());
  run.Settle();
  // While the trace, and the parameters that collectives read and write, are still there.
  if (outcome.ok()) {
    groups.SetTrace(nullptr);
  } else {
    Leave(groups);
  }
  return outcome;
}

}  // namespace weft::train
