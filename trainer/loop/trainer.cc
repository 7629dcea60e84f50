#include "trainer/loop/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/AutogradState.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/trace.h"
#include "trainer/checkpoint/run_states.h"
#include "trainer/data/batch_loader.h"
#include "trainer/device/device.h"
#include "trainer/device/graphs.h"
#include "trainer/files/file.h"
#include "trainer/forecast/memory_check.h"
#include "trainer/forecast/run_description.h"
#include "trainer/kernel_choice/kernel_choice.h"
#include "trainer/loop/agreed_config.h"
#include "trainer/loop/checkpoint_saver.h"
#include "trainer/loop/checkpoints.h"
#include "trainer/loop/compute_threads.h"
#include "trainer/loop/metrics_log.h"
#include "trainer/loop/pass_graphs.h"
#include "trainer/loop/peak.h"
#include "trainer/loop/progress.h"
#include "trainer/loop/run_end.h"
#include "trainer/loop/run_start.h"
#include "trainer/loop/step.h"
#include "trainer/loop/step_account.h"
#include "trainer/loop/step_trace.h"
#include "trainer/loop/summary.h"
#include "trainer/loop/validation.h"
#include "trainer/memory/memory.h"
#include "trainer/parallel/core_share.h"
#include "trainer/profile/work_time.h"

namespace weft::train {
namespace {

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
  void Settle(const absl::Status& why) {
    if (options_.snapshots != nullptr) options_.snapshots->Finish().IgnoreError();
    checkpoints_.Settle(why);
  }

  absl::StatusOr<RunOutcome> Execute() {
    WEFT_RETURN_IF_ERROR(CheckSameConfig(config_, group_));
    // A run that begins anew must not leave the old one's checkpoints to be resumed from.
    if (!options_.resume) WEFT_RETURN_IF_ERROR(checkpoints_.ExpectNone());
    WEFT_RETURN_IF_ERROR(group_.Agree(OpenData()));
    WEFT_ASSIGN_OR_RETURN(const std::string before, CoreChoiceBefore());
    WEFT_ASSIGN_OR_RETURN(core_share_, ChooseByCores(config_, groups_, options_.threads, before));
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
    position_.core_choice = CoreChoiceToWord(config_, SizesOf(groups_.mesh));
    double* const known = options_.peak_flops;
    WEFT_ASSIGN_OR_RETURN(const double peak, PeakFlops(config_, gemm_.libraries, device_,
                                                       known != nullptr ? *known : 0, group_));
    if (known != nullptr) *known = peak;
    account_.set_peak_flops(peak);
    WEFT_RETURN_IF_ERROR(group_.Agree(PrepareFolder()));
    WEFT_RETURN_IF_ERROR(StartLoader());
    if (is_first()) TellStart();
    ForgetTensorPeak();
    WEFT_ASSIGN_OR_RETURN(bool stopped, Loop());
    RunOutcome outcome;
    WEFT_ASSIGN_OR_RETURN(outcome.missing, End(stopped));
    return outcome;
  }

 private:
  bool is_first() const { return group_.rank() == 0; }
  std::string Path(absl::string_view name) const {
    return absl::StrCat(options_.run_dir, "/", name);
  }

  absl::Status OpenData() {
    WEFT_RETURN_IF_ERROR(data_.Open(options_.config, is_first()));
    config_.model.vocabulary = data_.vocab_size();
    return absl::OkStatus();
  }

  // What the config's open keys have where a checkpoint has `choice`; a word, empty: nothing.
  std::string KeptChoice(const std::string& choice) const {
    TrainConfig kept = options_.config;
    kept.model.vocabulary = config_.model.vocabulary;
    const ParallelSizes sizes = SizesOf(groups_.mesh);
    return KeepCoreChoice(choice, sizes, kept) ? CoreChoiceToWord(kept, sizes) : "";
  }

  // What was chosen by the cores when this rank was in the run, else before its last checkpoint;
  // empty: nothing. All ranks call it together. A run that goes on from memory opens no checkpoint.
  absl::StatusOr<std::string> CoreChoiceBefore() {
    if (options_.resume && !(options_.recovered && options_.snapshots != nullptr)) {
      WEFT_ASSIGN_OR_RETURN(const std::string saved, checkpoints_.FindState(kCoreChoiceState));
      kept_choice_ = KeptChoice(saved);
    }
    const bool was_here = options_.core_choice != nullptr && !options_.core_choice->empty();
    return was_here ? *options_.core_choice : kept_choice_;
  }

  // What the cores decided, or what the checkpoint has in place of that.
  std::string DescribeCoreChoice() const {
    const ParallelSizes sizes = SizesOf(groups_.mesh);
    TrainConfig own = options_.config;
    own.model.vocabulary = config_.model.vocabulary;
    FitToCores(own, sizes, core_share_);
    std::string kept;
    if (CoreChoiceToWord(config_, sizes) == kept_choice_) {
      kept = DescribeKeptChoice(config_, own, sizes);
    }
    return kept.empty() ? DescribeCores(options_.config, config_, sizes, core_share_) : kept;
  }

  // The loaded checkpoint has another choice where it replaced a damaged one, or memory was short.
  void WarnOfOtherChoice() {
    const std::string saved = KeptChoice(position_.core_choice);
    if (!is_first() || saved.empty() || saved == CoreChoiceToWord(config_, SizesOf(groups_.mesh))) {
      return;
    }
    WEFT_LOG_WARN(checkpoints_.loaded_from(),
                  " was saved with other values of train.micro_batch, parallel.tensor_chunks or "
                  "parallel.tensor_gathered than this run has: its sums have other last bits");
  }

  absl::Status CheckMemory() {
    absl::Status status = memory_.Check();
    while (absl::IsInvalidArgument(status) && TakeLessMemory(config_, options_.config)) {
      status = memory_.Check();
    }
    if (status.ok() && options_.core_choice != nullptr) {
      *options_.core_choice = CoreChoiceToWord(config_, SizesOf(groups_.mesh));
    }
    return status;
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
    if (config_.graphs == GraphUse::kAuto) UseGraphs();
    return absl::OkStatus();
  }

  // Ranks need not agree: a pass is the same either way.
  void UseGraphs() {
    std::string why = WhyNoGraphs(config_, stepper_->plan());
    if (why.empty()) {
      absl::StatusOr<std::unique_ptr<GraphDevice>> graphs = OpenGraphs(device_);
      if (graphs.ok()) return stepper_->SetGraphs(*std::move(graphs));
      why = std::string(graphs.status().message());
    }
    WEFT_LOG_INFO("train.graphs = auto: none, kernels are launched one by one: ", why);
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
      WarnOfOtherChoice();
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
                                                     data_.unigram_loss, config_.tensorboard));
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

  // In samples, of each dataset.
  std::vector<int64_t> EpochSizes() const {
    std::vector<int64_t> samples;
    for (const auto& stream : data_.training->streams()) {
      samples.push_back(stream->samples_per_epoch());
    }
    return samples;
  }

  void TellStart() {
    if (options_.recovered) {
      progress_->Note(absl::StrFormat("all ranks are here again: goes on after step %d, from %s",
                                      position_.step,
                                      from_memory_ ? "memory"
                                      : resumed_   ? "a checkpoint"
                                                   : "the beginning"));
      return;
    }
    PrintStart({.run_dir = options_.run_dir,
                .config = config_,
                .wants_packed = options_.config.pack_weights,
                .plan = stepper_->plan(),
                .ranks = group_.size(),
                .threads = options_.threads,
                .device = device_,
                .gemm = gemm_,
                .attention = attention_,
                .datasets = DescribeDatasets(config_, EpochSizes()),
                .peak_flops = account_.peak_flops(),
                .bound_threads = threads_ ? threads_->description() : "",
                .cores = DescribeCoreChoice(),
                .packed = stepper_->packed_bytes(),
                .resume = options_.resume,
                .resumed = resumed_,
                .step = position_.step,
                .loaded_from = checkpoints_.loaded_from(),
                .read = checkpoints_.read()},
               *progress_);
    if (resumed_) {
      metrics_->AppendResumed(position_.step, checkpoints_.loaded_from(), checkpoints_.read());
    }
  }

  // Whether it was stopped before the last step.
  absl::StatusOr<bool> Loop() {
    while (position_.step < config_.steps) {
      int64_t start = SystemClock::Nanoseconds();
      int64_t step = position_.step + 1;
      if (groups_.records != nullptr) groups_.records->SetStep(step);
      if (steps_trace_) steps_trace_->BeginStep(step);
      account_.Begin(start);
      absl::StatusOr<Batch> batch = NextBatch(step);
      bool stop_requested = options_.stop != nullptr && options_.stop->load();
      WEFT_ASSIGN_OR_RETURN(StepResult result, stepper_->Step(step, batch, stop_requested));
      RecordStep(step, result, start, account_.End());
      if (std::exchange(tells_phases_, false)) WEFT_RETURN_IF_ERROR(TellPhases(step));
      position_.step = step;
      position_.samples = loader_->position();
      position_.loss_scale = stepper_->loss_scale().ToText();
      WEFT_RETURN_IF_ERROR(AfterStep(result));
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
    TraceScope wait(trace_, "data wait", kDataWaitTrack, step);
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
    record.tokens = static_cast<uint64_t>(account_.tokens_per_step());
    const double bubble = result.bubble ? result.bubble->seconds : 0;
    record.exposed_ns = static_cast<int64_t>((result.exposed.total() + bubble) * 1e9);
    groups_.records->Write(record);
  }

  absl::Status AfterStep(const StepResult& result) {
    const int64_t step = position_.step;
    StepMetrics metrics = account_.MetricsOf(step, result);
    bool is_last = step == config_.steps;
    if (is_last || (config_.validation_every > 0 && step % config_.validation_every == 0)) {
      WEFT_ASSIGN_OR_RETURN(validation_, MeasureValidation(config_, data_, *stepper_));
      metrics.validation = validation_;
    }
    account_.Count(metrics);
    if (is_first() && !result.replanned.empty()) progress_->Note(result.replanned);
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
    account_.AddSnapshot(static_cast<double>(SystemClock::Nanoseconds() - start) * 1e-9);
    if (is_new && is_first()) {
      progress_->Note(absl::StrFormat(
          "snapshots of the last 2 steps, of %s: %.1f MiB in memory (recovery.snapshot)",
          options_.snapshots->keeps_another() ? "2 ranks" : "this rank, as its replicas have them",
          options_.snapshots->bytes() / MiB(1)));
    }
    return absl::OkStatus();
  }

  // Ends the step before's copies, in the step that is about to change the state.
  absl::Status FinishCopies() {
    TraceScope scope(trace_, "wait_snapshot", kComputeTrack, position_.step);
    absl::Status status = saver_.FinishCopy();
    const int64_t copied = SystemClock::Nanoseconds();
    if (TakesSnapshots()) status.Update(options_.snapshots->Finish());
    account_.AddSnapshot(static_cast<double>(SystemClock::Nanoseconds() - copied) * 1e-9);
    return status;
  }

  absl::Status Save() {
    TraceScope scope(trace_, "checkpoint", kComputeTrack, position_.step);
    return saver_.Save(position_, stepper_->parameters(), account_.mean_step());
  }

  absl::Status SaveAfterStep() {
    TraceScope scope(trace_, "checkpoint", kComputeTrack, position_.step);
    return saver_.SaveAfter(position_, stepper_->parameters(), account_.mean_step());
  }

  // The files that could not be written (RunOutcome).
  absl::StatusOr<std::vector<std::string>> End(bool stopped) {
    return EndRun({.run_dir = options_.run_dir,
                   .config = config_,
                   .device = device_,
                   .group = group_,
                   .stepper = *stepper_,
                   .data = data_,
                   .checkpoints = checkpoints_,
                   .saver = saver_,
                   .account = account_,
                   .memory = memory_,
                   .gemm = gemm_,
                   .trace = steps_trace_ ? &*steps_trace_ : nullptr,
                   .metrics = metrics_.get(),
                   .progress = progress_.get(),
                   .step = position_.step,
                   .stopped = stopped,
                   .has_snapshots = options_.snapshots != nullptr,
                   .validation = [this]() -> absl::StatusOr<ValidationLoss> {
                     // None: the run was resumed at the end.
                     if (validation_.has_value()) return *validation_;
                     return MeasureValidation(config_, data_, *stepper_);
                   }});
  }

  const RunOptions& options_;
  const at::Device device_;
  TrainConfig config_;
  StepAccount account_{config_};
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
  std::unique_ptr<MetricsLog> metrics_;  // rank 0
  std::unique_ptr<Progress> progress_;   // rank 0
  CoreShare core_share_;
  std::string kept_choice_;                // by the cores, of the checkpoint (KeptChoice)
  std::optional<ComputeThreads> threads_;  // on a CPU
  RunPosition position_;
  bool resumed_ = false;
  bool from_memory_ = false;
  bool tells_phases_ = options_.recovered && group_.size() > 1;
  KernelChoice gemm_, attention_;
  std::optional<ValidationLoss> validation_;  // the last
};

}  // namespace

// The device of this rank, and NCCL for its tensors where the config wants that; all ranks
// together.
static absl::StatusOr<at::Device> OpenOwnDevice(const RunOptions& options, ParallelGroups& groups) {
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
  WEFT_RETURN_IF_ERROR(groups.OpenDeviceCollectives(wanted, *device, options.collective_timeout));
  return device;
}

absl::StatusOr<RunOutcome> Train(const RunOptions& options, ParallelGroups& groups) {
  at::set_num_threads(options.threads);
  const absl::StatusOr<at::Device> device = OpenOwnDevice(options, groups);
  if (!device.ok()) {
    groups.Fail(device.status());
    groups.Leave();
    return device.status();
  }
  Run run(options, groups, *device);
  absl::StatusOr<RunOutcome> outcome = run.Execute();
  if (!outcome.ok()) groups.Fail(outcome.status());
  run.Settle(outcome.status());
  // While the trace, and the parameters that collectives read and write, are still there.
  if (outcome.ok()) {
    groups.SetTrace(nullptr);
  } else {
    groups.Leave();
  }
  return outcome;
}

}  // namespace weft::train
