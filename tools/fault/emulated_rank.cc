#include "tools/fault/emulated_rank.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/median.h"
#include "base/random.h"
#include "base/records.h"
#include "base/status.h"
#include "collectives/communicator.h"
#include "tools/fault/emulated_links.h"
#include "tools/job/job.h"

namespace weft::fault {
namespace {

using collectives::Communicator;
using collectives::DataType;
using collectives::GroupRank;
using collectives::ReduceOp;
using collectives::WorkPtr;

constexpr size_t kGradients = 64 << 10;  // floats of a bucket
constexpr int kBuckets = 2;
constexpr int kCheckpointEvery = 15;
constexpr size_t kActivations = 256 << 10;  // bytes; more than goes without a receive

// A process that hangs, hangs; the launcher or the bench ends it.
[[noreturn]] void Forever() {
  while (true) pause();
}

class Rank {
 public:
  Rank(job::Joined joined, const EmulationOptions& options)
      : joined_(std::move(joined)),
        options_(options),
        world_(*joined_.world),
        records_(joined_.endpoint->records()),
        rank_(world_.rank().value()),
        noise_(options.seed, static_cast<uint64_t>(rank_) + 100),
        gradients_(kBuckets, std::vector<float>(kGradients, 1.0f)),
        links_(records_, rank_, world_.size(), kActivations, options.step_time / 20),
        outgoing_(2, std::vector<std::byte>(kActivations)),
        incoming_(2, std::vector<std::byte>(kActivations)) {
    Random draw(options.seed);
    const auto drawn = static_cast<int>(draw.Below(static_cast<uint64_t>(world_.size())));
    culprit_ = options.rank >= 0 ? options.rank % world_.size() : drawn;
    beside_ = (culprit_ + 1) % world_.size();
  }

  absl::Status Run() {
    WEFT_ASSIGN_OR_RETURN(first_, Group("first"));
    WEFT_ASSIGN_OR_RETURN(second_, Group("second"));
    SayWhatIsHere();
    if (Has("late-start") && rank_ == culprit_) Sleep(1.0, absl::Milliseconds(700));
    for (step_ = 1; step_ <= options_.steps; ++step_) {
      const int64_t start_ns = SystemClock::Nanoseconds();
      WEFT_RETURN_IF_ERROR(Step());
      took_ns_.push_back(SystemClock::Nanoseconds() - start_ns);
    }
    if (options_.timing && rank_ == 0 && !took_ns_.empty()) {
      std::printf("{\"step_median_ns\":%lld}\n", static_cast<long long>(UpperMedian(took_ns_)));
    }
    return absl::OkStatus();
  }

 private:
  bool Has(absl::string_view fault) const { return options_.fault == fault; }
  // From its step on, on its rank. Says so once.
  bool Begins(absl::string_view fault) { return BeginsAt(fault, rank_ == culprit_); }
  // On its rank and the one beside it.
  bool BeginsOnBoth(absl::string_view fault) {
    return BeginsAt(fault, rank_ == culprit_ || rank_ == beside_);
  }
  bool BeginsAt(absl::string_view fault, bool here) {
    const bool begins = Has(fault) && here && step_ >= options_.at_step;
    if (begins && !std::exchange(said_, true)) {
      std::printf("{\"onset_ns\":%lld,\"fault\":\"%s\",\"rank\":%d,\"step\":%d,\"pid\":%d}\n",
                  static_cast<long long>(SystemClock::Nanoseconds()), options_.fault.c_str(), rank_,
                  step_, getpid());
      std::fflush(stdout);
    }
    return begins;
  }
  bool IsNow() const { return step_ == options_.at_step; }
  bool BeginsNow(absl::string_view fault) { return Begins(fault) && IsNow(); }

  absl::StatusOr<std::unique_ptr<Communicator>> Group(absl::string_view name) {
    std::vector<weft::Rank> ranks;
    for (int rank = 0; rank < world_.size(); ++rank) ranks.emplace_back(rank);
    return Communicator::Create(joined_.endpoint, name, std::move(ranks));
  }

  RecordName Name(absl::string_view name) {
    return records_ == nullptr ? RecordName{0} : records_->Name(name);
  }

  // This part of a step's compute, a little more or less.
  void Sleep(double factor, absl::Duration whole) {
    const double jitter = 0.98 + 0.04 * static_cast<double>(noise_.Below(1000)) / 1000;
    absl::SleepFor(whole * factor * jitter);
  }
  void Compute(absl::string_view phase, double part, double factor = 1) {
    PhaseScope scope(records_, Name(phase), step_);
    if (step_ == 1 || (Has("warm-up") && step_ <= 5)) factor *= 3;  // everybody's first steps
    if (Has("uneven-lengths")) factor *= 0.8 + 0.4 * static_cast<double>(noise_.Below(100)) / 100;
    Sleep(part * factor, options_.step_time);
  }
  absl::Status Wait(const WorkPtr& work, absl::string_view phase) {
    PhaseScope scope(records_, Name(phase), step_);
    return work->Wait();
  }

  absl::Status Step() {
    if (records_ != nullptr) records_->SetStep(step_);
    const int64_t start = SystemClock::Nanoseconds();
    const int64_t exposed_before = exposed_ns_;
    SayWhatIsCounted();
    WEFT_RETURN_IF_ERROR(Data());
    WEFT_RETURN_IF_ERROR(Forward());
    WEFT_RETURN_IF_ERROR(Backward());
    Compute("optimizer", 0.1);
    WEFT_RETURN_IF_ERROR(Norm());
    if (step_ % kCheckpointEvery == 0) Checkpoint();
    CheckReplica();
    if (Has("evaluation") && step_ == options_.at_step) {
      for (int batch = 0; batch < 5; ++batch) Compute("forward", 0.3);
    }
    if (records_ != nullptr) {
      StepRecord record;
      record.start_ns = start;
      record.end_ns = SystemClock::Nanoseconds();
      record.step = step_;
      record.loss = 5.0 / step_ * (BeginsNow("bad-batch") ? 8 : 1);
      record.tokens = 4096;
      record.exposed_ns = exposed_ns_ - exposed_before;
      record.spare = BeginsNow("not-finite") ? 1 : 0;
      records_->Write(record);
    }
    return absl::OkStatus();
  }

  // Once, before the first step: what a healthy rank shows.
  void SayWhatIsHere() {
    links_.Say("setting", "mtu_bytes", 4096);
    links_.Say("job", "epoch", 1);
    links_.Say("gpu/0", "DCGM_FI_DEV_SM_CLOCK", 1980);
    links_.Say("gpu/0", "DCGM_FI_DEV_GPU_TEMP", 61);
    links_.Say("gpu/0", "DCGM_FI_DEV_XID_ERRORS", 0);
    links_.Say("gpu/0", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 0);
    links_.Say("cgroup", "oom_kill", 0);
    links_.Say("cgroup", "nr_throttled", 0);
    links_.Say("observer", "rows_dropped", 0);
    links_.Say("progress", "gaps", 0);
    links_.Say("nic/mlx5_0", "port_active", 1);
    for (const char* counter : {"link_downed", "rx_icrc_encapsulated", "out_of_sequence",
                                "np_cnp_sent", "qp_errors", "reconnects"}) {
      links_.Count(counter, 0);
    }
    // Two ranks a host, where a whole host is to stop.
    if (Has("stop-host") && records_ != nullptr) {
      records_->Say(absl::StrCat("host emulated-", rank_ / 2));
    }
    if (Has("clock-skew") && rank_ == culprit_) SkewClock();
  }

  // The wall clock of this rank's host, 5 s ahead of the others'.
  void SkewClock() {
    if (records_ == nullptr) return;
    const int file = open(records_->path().c_str(), O_RDWR | O_CLOEXEC);
    const int64_t ahead_ns = absl::ToUnixNanos(absl::Now() + absl::Seconds(5));
    if (file < 0) return;
    (void)!pwrite(file, &ahead_ns, sizeof(ahead_ns), offsetof(RecordFileHeader, realtime_ns));
    close(file);
  }

  void Error(absl::string_view code, absl::string_view place, absl::string_view text) {
    if (records_ == nullptr) return;
    records_->Say(absl::StrCat("error ", SystemClock::Nanoseconds(), " ", step_, " ", code, " ",
                               place, " ", text));
  }

  // What is seen in counters only, or in them first.
  void SayWhatIsCounted() {
    if (Has("counters") && step_ == options_.at_step) {  // benign: a little of everything
      links_.Count("link_downed", 1);
      links_.Count("rx_icrc_encapsulated", 1);
      links_.Count("out_of_sequence", 12);
      links_.Count("np_cnp_sent", 40);
    }
    if (BeginsNow("xid")) links_.Say("gpu/0", "DCGM_FI_DEV_XID_ERRORS", 79);
    if (BeginsNow("ecc")) links_.Say("gpu/0", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", 1);
    if (BeginsNow("thermal")) {
      links_.Say("gpu/0", "DCGM_FI_DEV_GPU_TEMP", 91);
      links_.Say("gpu/0", "DCGM_FI_DEV_SM_CLOCK", 1980 / options_.severity);
    }
    if (Begins("cpu-quota")) links_.Say("cgroup", "nr_throttled", step_ - options_.at_step + 1);
    if (BeginsNow("observer")) links_.Say("observer", "rows_dropped", 512);
    if (BeginsNow("settings")) links_.Say("setting", "mtu_bytes", 1024);
    if (Begins("late-thread")) links_.Say("progress", "gaps", step_ - options_.at_step + 1);
    if (BeginsNow("nic-down")) {
      links_.Count("link_downed", 1);
      links_.Say("nic/mlx5_0", "port_active", 0);
    }
    if (Begins("link-flaps") && step_ <= options_.at_step + 2) links_.Count("link_downed", 1);
    if (BeginsNow("queue-pair-error")) {
      links_.Count("qp_errors", 1);
      links_.Count("reconnects", 1);
    }
    if (Begins("reordering")) links_.Count("out_of_sequence", 100);
    if (Begins("corrupting-link")) links_.Count("rx_icrc_encapsulated", 5);
    if (Begins("congestion")) links_.Count("np_cnp_sent", 400);
    if (BeginsAt("store-lost", true) && IsNow()) {
      Error("UNAVAILABLE", "store", "the store closed the connection; trying again");
    }
    // A rank behind a partition: the job goes on, and numbers its membership anew.
    (void)BeginsNow("stale-rank");
    if (Has("stale-rank") && IsNow() && rank_ != culprit_) links_.Say("job", "epoch", 2);
  }

  void Checkpoint() {
    double factor = Has("long-checkpoint") ? 5 : 1;
    if (step_ >= options_.at_step && Begins("slow-storage")) factor = 10 * options_.severity;
    Compute("checkpoint", factor);
    if (Begins("disk-full")) {
      Error("RESOURCE_EXHAUSTED", "checkpoint", "write: no space left on device");
    }
    if (Begins("bad-shard")) {
      Error("DATA_LOSS", "checkpoint", "shard 3: its CRC is 5f3a, the manifest says 91c0");
    }
    if (Begins("kill-in-save")) raise(SIGKILL);
  }

  // What all data-parallel replicas have alike, in one number.
  void CheckReplica() {
    if (records_ == nullptr) return;
    PhaseRecord check;
    check.name = Name("replica_check");
    check.step = step_;
    check.start_ns = check.end_ns = SystemClock::Nanoseconds();
    check.spare[0] = Random(options_.seed + static_cast<uint64_t>(step_))();
    if (Begins("bit-flip")) check.spare[0] ^= 1ull << 20;
    records_->Write(check);
  }

  absl::Status Data() {
    PhaseScope scope(records_, Name("data"), step_);
    if (BeginsNow("hang-data")) Forever();
    if (BeginsNow("stop")) raise(SIGSTOP);
    if (BeginsAt("stop-host", rank_ / 2 == culprit_ / 2) && IsNow()) raise(SIGSTOP);
    Sleep(0.05 * (Begins("slow-data") ? 20 * options_.severity : 1), options_.step_time);
    return absl::OkStatus();
  }

  absl::Status Forward() {
    {
      PhaseScope scope(records_, Name("forward"), step_);
      if (BeginsNow("hang-compute")) Forever();
      if (BeginsNow("kill")) raise(SIGKILL);
      if (BeginsNow("crash")) std::abort();
      if (BeginsOnBoth("kill-two") && IsNow()) raise(SIGKILL);
      if (BeginsNow("out-of-memory")) {
        links_.Say("cgroup", "oom_kill", 1);
        raise(SIGKILL);
      }
      if (BeginsNow("same-error")) {
        for (int attempt = 0; attempt < 2; ++attempt) {
          Error("INVALID_ARGUMENT", "step", "token 70112 is beyond the vocabulary of 50257");
        }
        _exit(1);
      }
      if (BeginsNow("leave")) {
        std::fflush(stdout);
        first_.reset();
        second_.reset();
        joined_ = {};
        _exit(0);
      }
      if (Has("pause") && rank_ == culprit_ && step_ == options_.at_step) {
        Sleep(3, options_.step_time);
      }
    }
    if (BeginsNow("livelock")) TryForEver();
    Experts();
    Compute("forward", 0.25, Slowness());
    return world_.size() > 1 ? Exchange() : absl::OkStatus();
  }

  // The factor by which computing takes longer in this step.
  double Slowness() {
    const bool slow = Begins("slow-compute") || Begins("thermal") || Begins("cpu-quota") ||
                      BeginsOnBoth("slow-two") ||
                      ((step_ - options_.at_step) % 4 == 0 && Begins("slow-at-times"));
    return slow ? options_.severity : 1;
  }

  // Alive, and not getting anywhere.
  [[noreturn]] void TryForEver() {
    while (true) Compute("forward", 0.1);
  }

  // Work that is uneven, and says so: a rank's experts get more tokens than others'.
  void Experts() {
    const bool popular = Has("uneven-experts") && rank_ == culprit_ && step_ >= options_.at_step;
    PhaseRecord experts;
    experts.step = step_;
    experts.spare[0] = popular ? 8192 : 4096;
    experts.start_ns = SystemClock::Nanoseconds();
    Sleep(popular ? 0.1 : 0.05, options_.step_time);
    experts.end_ns = SystemClock::Nanoseconds();
    if (records_ == nullptr) return;
    experts.name = Name("experts");
    records_->Write(experts);
  }

  // The state of the link to the next rank of the ring, or to the one before.
  LinkState Link(bool to_next) {
    LinkState state;
    const bool whole_nic = rank_ == culprit_ || (to_next ? Next() : Before()) == culprit_;
    // The one link between the culprit and the rank beside it, seen from either end.
    const bool this_link = (rank_ == culprit_ && to_next) || (rank_ == beside_ && !to_next);
    const bool now = step_ >= options_.at_step;
    if (now && whole_nic && (Has("slow-nic") || Has("congestion"))) {
      state.slowness = 5 * options_.severity;
      state.held_before_nic = Has("slow-nic");
      if (Has("congestion")) state.rtt_us = 900;
    }
    if (now && this_link && Has("latency")) state.rtt_us = 20000;
    if (now && this_link && Has("lossy-link")) state.repeats = 8, state.slowness = 2;
    if (now && this_link && Has("reordering")) state.slowness = 1.5;
    (void)(Begins("slow-nic") || Begins("latency") || Begins("lossy-link"));
    return state;
  }
  int Next() const { return links_.next(); }
  int Before() const { return links_.before(); }

  // With both neighbours of the ring, as a pipeline's stages do.
  absl::Status Exchange() {
    const GroupRank next(Next()), before(Before());
    std::vector<std::pair<WorkPtr, const char*>> works;
    if (!Begins("no-receive")) {
      works.emplace_back(world_.Receive(incoming_[1].data(), kActivations, before, 7),
                         "wait_receive");
    }
    works.emplace_back(world_.Receive(incoming_[0].data(), kActivations, next, 8), "wait_receive");
    if (Begins("slow-receiver")) absl::SleepFor(options_.step_time * options_.severity);
    {
      PhaseScope scope(records_, Name("wait_send"), step_);
      if (Begins("late-thread")) absl::SleepFor(options_.step_time * options_.severity);
      if (BeginsNow("one-way-loss") || BeginsNow("blackhole")) links_.Stand(Next(), 7);
      if (Has("blackhole") && rank_ == beside_ && IsNow()) links_.Stand(Before(), 8);
      links_.Exchange(Link(/*to_next=*/true), Link(/*to_next=*/false));
    }
    if (BeginsNow("corrupt-data")) SayCorrupt(Before());
    works.emplace_back(world_.Send(outgoing_[0].data(), kActivations, next, 7), "wait_send");
    works.emplace_back(world_.Send(outgoing_[1].data(), kActivations, before, 8), "wait_send");
    for (const auto& [work, phase] : works) WEFT_RETURN_IF_ERROR(Wait(work, phase));
    return absl::OkStatus();
  }

  // A message whose checksum was wrong end to end, and that was sent again.
  void SayCorrupt(int peer) {
    if (records_ == nullptr) return;
    CallRecord call;
    call.kind = RecordKind::kDone;
    call.code = static_cast<uint8_t>(absl::StatusCode::kDataLoss);
    call.name = Name("receive");
    call.group = Name("world");
    call.start_ns = call.end_ns = SystemClock::Nanoseconds();
    call.peer = peer;
    call.bytes = kActivations;
    records_->Write(call);
  }

  absl::Status Backward() {
    std::vector<WorkPtr> works;
    for (int bucket = 0; bucket < kBuckets; ++bucket) {
      Compute("backward", 0.55 / kBuckets, Slowness());
      std::vector<float>& values = gradients_[static_cast<size_t>(bucket)];
      size_t count = values.size();
      if (BeginsNow("other-size")) count /= 2;
      works.push_back(BeginsNow("other-call")
                          ? world_.Broadcast(values.data(), values.data(), count,
                                             DataType::kFloat32, GroupRank(0))
                          : world_.AllReduce(values.data(), values.data(), count,
                                             DataType::kFloat32, ReduceOp::kAverage));
    }
    for (const WorkPtr& work : works) {
      const int64_t start = SystemClock::Nanoseconds();
      WEFT_RETURN_IF_ERROR(Wait(work, "wait_all_reduce"));
      exposed_ns_ += SystemClock::Nanoseconds() - start;
    }
    return absl::OkStatus();
  }

  // Two groups of everybody, in one order; a deadlock where one rank takes them in the other.
  absl::Status Norm() {
    Communicator* groups[] = {first_.get(), second_.get()};
    if (BeginsNow("crossed-groups")) std::swap(groups[0], groups[1]);
    for (Communicator* group : groups) {
      double norm = 1;
      WEFT_RETURN_IF_ERROR(
          Wait(group->AllReduce(&norm, &norm, 1, DataType::kFloat64, ReduceOp::kSum), "wait_norm"));
    }
    return absl::OkStatus();
  }

  job::Joined joined_;
  const EmulationOptions options_;
  Communicator& world_;
  Records* const records_;
  const int rank_;
  int culprit_ = 0, beside_ = 0;  // beside_: the next of the ring
  Random noise_;
  std::vector<std::vector<float>> gradients_;
  EmulatedLinks links_;
  std::vector<std::vector<std::byte>> outgoing_, incoming_;  // to and from the next, the one before
  std::unique_ptr<Communicator> first_, second_;
  int step_ = 0;
  int64_t exposed_ns_ = 0;
  std::vector<int64_t> took_ns_;  // of each step
  bool said_ = false;
};

}  // namespace

absl::Status RunEmulatedRank(const Settings& settings, const EmulationOptions& options) {
  WEFT_ASSIGN_OR_RETURN(job::Joined joined, job::Join(settings, "weft-fault"));
  return Rank(std::move(joined), options).Run();
}

}  // namespace weft::fault
